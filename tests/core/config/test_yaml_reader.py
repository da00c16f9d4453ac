"""Strict YAML 1.2, with and without C: types of unquoted values, and refused documents."""

import math

import pytest
import yaml

from slurm_job_kit.jobs.config import yaml_reader
from slurm_job_kit.jobs.contract.problems import Place


@pytest.fixture(params=["CSafeLoader", "SafeLoader"], autouse=True)
def loader(request, monkeypatch):
    if not hasattr(yaml, request.param):
        pytest.skip("this PyYAML was built without libyaml")
    monkeypatch.setattr(yaml_reader, "LOADER", getattr(yaml, request.param))


def parse(text):
    return yaml_reader.parse(text, lambda line: Place(f"f:{line}", (0, line)))


def values(text):
    document = parse(text)
    assert not document.problems, document.problems
    return document.values


def problems(text):
    return "\n".join(map(str, parse(text).problems))


@pytest.mark.parametrize(
    "written", ["no", "NO", "off", "on", "yes", "y", "4:00:00", "30:00", "2026-01-01", "1_000"]
)
def test_what_yaml_1_1_would_turn_into_something_else_stays_text(written):
    assert values(f"key: {written}") == {"key": written}


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("~", None),
        ("true", True),
        ("0123", 123),
        ("0o17", 15),
        ("0xFf", 255),
        ("1e-3", 0.001),
        (".5", 0.5),
        ("-.inf", -math.inf),
        ("9223372036854775807", 2**63 - 1),
        ("0b1", "0b1"),
        ("'5'", "5"),
        ('"null"', "null"),
    ],
)
def test_unquoted_words_follow_the_core_schema(written, value):
    result = values(f"key: {written}")["key"]
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize("digits", ["9223372036854775808", "-" + "9" * 30, "9" * 5000])
def test_a_number_beyond_64_bits_is_refused_and_not_rounded(digits):
    assert "does not fit into 64 bits" in problems(f"key: {digits}")
    assert "does not fit" in problems("key: 0x" + "f" * 17)


def test_duplicate_keys_are_refused_with_both_lines():
    text = problems("a: 1\nb:\n  c: 1\n  d: 2\n  c: 3\na: 4\n")
    assert "f:5: b.c: duplicate key, already at f:3" in text
    assert "f:6: a: duplicate key, already at f:1" in text
    assert "duplicate key" in problems('a: 1\n"\\x61": 2\n')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: *x\n", "f:2: this is not YAML: found undefined alias"),
        ("a: 1\nb: &x [*x]", "f:2: this is not YAML: an alias in its own value"),
        ("a: 1\n<<: [{b: 2}, c]\n", "f:2: this is not YAML: expected a mapping for merging"),
        ("a: !!str 1\n", "f:1: this is not YAML: tags are not"),
        ("a: 1\n---\nb: 2\n", "f:2: this is not YAML: but found another document"),
        ("1: x\n", "the key 1 is not text"),
        ("a: {lr: 1,5}\n", "hint: a decimal number has a point"),
        ("a:\n  true: x\n", "f:2: a.true: the key true is not text"),
        ("? [a]\n: b\n", "f:1: a key must be text"),
        ("a: [1\nb: 2\n", "f:1: the [ of line 1 is not closed\n  hint: write ] at its end, and"),
        ('a: 1\nb: "x\nc: 2\n', 'f:2: the " of line 2 is not closed\n  hint: write " at its end'),
        ("a: 1\nlr=0.1\n", "f:2: a key ends with a colon and a space\n  hint: write lr: 0.1"),
        ("a:\n  - b\n   - c\n", 'f:2: a[0]: "b - c" goes over several lines'),
        ("a: 1\nlr\uff1a0.1\n", "f:2: line 2 has U+FF1A (fullwidth colon) in it"),
        ("a: 1e\u00ad3\n", "has U+00AD (soft hyphen) in it"),
        ("# only a comment\n", "f:1: this is not YAML: it is empty"),
        ("a: x\x00y\n", "f:1: the character U+0000 is not allowed"),
        ("a: 1\nb: \x1b[31m\n", "f:2: the character U+001B is not allowed"),
        ("a: x\u2028y\n", "the character U+2028 is not allowed"),
        ("a:\n\tb: 1\n", "f:2: line 2 begins with a tab\n  hint: indent with spaces"),
        ("a:\n  b: 1\n\tc: 2\n", "f:3: line 3 begins with a tab"),
        ("a:\n  b: 1\n   c: 2\n", "f:3: line 3 is indented by 3 spaces, line 2 by 2"),
        ("a:\n   b: 1\n  # c\n  d: 2\n", "f:4: line 4 is indented by 2 spaces, line 2 by 3"),
        ("a:\n  - b\n - c\n", "f:3: line 3 is indented by 1 space, line 2 by 2"),
        ("a: # x\n  b: c: d\n", "f:2: this is not YAML: mapping values"),
        ("a:\n  lr:0.1\n  b: 2\n", "f:2: a key ends with a colon and a space\n  hint: write lr: "),
        ("a: {lr:0.1, b: 2}\n", 'f:1: a."lr:0.1": a key ends with a colon and a space\n  hint: w'),
        ("a:\n  b:\u00a00.1\n  c: 2\n", "f:2: line 2 has U+00A0 (no-break space) in it"),
        ("a: 6\u20138\n", 'f:1: a: "6\u20138" has U+2013 (en dash) in it\n  hint: type a plain'),
    ],
)
def test_what_hides_meaning_is_refused_with_its_line(text, message):
    assert message in problems(text)


def test_an_alias_has_the_line_of_its_value_and_merged_keys_come_after_ones_own():
    document = parse("a: &x\n  b: 1\n  c: 2\nd: &y {<<: *x, c: 3}\ne:\n  <<: [*y, *x]\n  f: *x\n")
    merged = {"c": 3, "b": 1, "f": {"b": 1, "c": 2}}
    assert document.values["e"] == merged and not document.problems
    places = {("e", "b"): "f:2", ("e", "c"): "f:4", ("e", "f"): "f:1", ("e", "f", "c"): "f:3"}
    assert {at: document.nodes[at].place.where for at in places} == places


@pytest.mark.parametrize("text", ["1e5", "08", "0o17", "04:00", "a\u00a0b", "x - y" * 40, "null"])
def test_values_are_written_as_they_are_read(text):
    document = parse(yaml_reader.text_of({"a": text}))
    assert document.values == {"a": text} and not document.problems
    assert document.nodes["a",].written in (None, "x - y" * 40)


@pytest.mark.parametrize("text", ["[" * 50_000, "{a: " * 10_000, "- " * 20_000, "? " * 20_000])
def test_deep_nesting_is_refused_and_not_followed(text):
    assert "nested over 32 levels" in problems(text) or "a key must be text" in problems(text)


@pytest.mark.parametrize(("number", "width"), [(9, 9), (1500, 1)])
def test_aliases_that_make_a_large_or_deep_value_are_refused(number, width):
    lines = [f"  a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * width)}]" for n in range(1, number)]
    assert "aliases make over" in problems("x-b:\n  a0: &a0 [1]\n" + "\n".join(lines))


def test_every_key_has_its_line_and_unquoted_text_is_kept():
    document = parse("a: 0123\nb:\n  c: '0123'\n  d:\n    - x\n    - y\n")
    where = {path: node.place.where for path, node in document.nodes.items()}
    assert where[("a",)] == "f:1"
    assert where[("b",)] == "f:2"
    assert where[("b", "c")] == "f:3"
    assert where[("b", "d", 1)] == "f:6"
    assert document.nodes[("a",)].written == "0123"
    assert document.nodes[("b", "c")].written is None
    assert document.place(("b", "c", "nowhere", 3)).where == "f:3"
