"""Windows of token files, of the bytes of text files, and of Python's own source code."""

import os
import resource
import struct
import sysconfig

import numpy as np
import pytest
import torch

from slurm_job_kit.trainer.data.tokens import python_source, text, tokens
from slurm_job_kit.trainer.errors import UserError
from tests.unit.data_kit import feed_of


def write(path, values, dtype="<u2", header=False):
    head = struct.pack("<256i", 20240520, 1, len(values), *[0] * 253) if header else b""
    path.write_bytes(head + np.asarray(values, dtype=dtype).tobytes())
    return str(path)


def windows(source):
    return source.batch(torch.arange(len(source))).tolist()


def test_windows_overlap_by_one_token_and_cross_no_end_of_a_file(tmp_path):
    write(tmp_path / "a_1.bin", range(10))  # 3 windows of 3 + 1, no rest
    write(tmp_path / "a_2.bin", range(20, 26))  # 1 window, 2 tokens are left out
    write(tmp_path / "a_3.bin", range(40, 43))  # too short for one
    write(tmp_path / "a_4.bin", range(50, 54))
    train, held_out = tokens(f"{tmp_path}/a_*.bin", vocab_size=100, block_size=3)
    assert held_out is None and len(train) == 5
    assert windows(train) == [
        [0, 1, 2, 3],
        [3, 4, 5, 6],
        [6, 7, 8, 9],
        [20, 21, 22, 23],
        [50, 51, 52, 53],
    ]
    mixed = train.batch(torch.tensor([4, 0, 3, 0]))
    assert mixed.dtype == torch.int64 and mixed[:, 0].tolist() == [50, 0, 20, 0]


@pytest.mark.parametrize("block_size", [1, 4, 7])
def test_each_token_is_a_target_once(tmp_path, block_size):
    path = write(tmp_path / "a.bin", range(29))
    train, _ = tokens(path, vocab_size=29, block_size=block_size)
    targets = [token for window in windows(train) for token in window[1:]]
    assert targets == list(range(1, 29 // block_size * block_size + 1))[: len(targets)]
    assert len(targets) == 28 // block_size * block_size


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_both_types_are_read_with_and_without_a_header(tmp_path, dtype):
    values = [5, 60000, 7, 8, 9]
    kind = {"uint16": "<u2", "uint32": "<u4"}[dtype]
    paths = [write(tmp_path / f"{header}.bin", values, kind, header) for header in (False, True)]
    train, held_out = tokens(paths[0], 60001, paths[1], block_size=4, dtype=dtype)
    assert held_out is not None
    assert windows(train) == windows(held_out) == [values]


def test_a_part_may_be_a_list_of_files_and_patterns_in_their_order(tmp_path, monkeypatch):
    for name, first in (("b", 10), ("a_2", 30), ("a_1", 20)):
        write(tmp_path / f"{name}.bin", range(first, first + 3))
    monkeypatch.setenv("DATA", str(tmp_path))
    train, held_out = tokens(["$DATA/b.bin", "$DATA/a_*.bin"], 99, ["$DATA/b.bin"], block_size=2)
    assert [window[0] for window in windows(train)] == [10, 20, 30]
    assert held_out is not None and windows(held_out) == [[10, 11, 12]]


def test_files_that_hold_no_such_tokens_are_named_with_the_key(tmp_path):
    path = write(tmp_path / "a.bin", range(5))
    for args, words in [
        ({"train": path, "dtype": "int64"}, "dtype is 'int64': write uint16 or uint32"),
        ({"train": path, "dtype": "uint32"}, "train: .*a.bin has 10 bytes, .* of 4 bytes each"),
        ({"train": path, "block_size": 0}, "block_size must be 1 or more, not 0"),
        ({"train": f"{tmp_path}/b*.bin"}, "train: no file matches .*b"),
        ({"train": path, "held_out": f"{tmp_path}/b"}, "held_out: no file matches .*b"),
        ({"train": "data/a.bin"}, "train: data/a.bin is relative, but ranks run .* /data/data/a"),
        ({"train": [3]}, "train must be a path, not 3"),
    ]:
        with pytest.raises(UserError, match=f"^train.dataset_args.{words}"):
            tokens(**{"vocab_size": 9, "block_size": 2, **args})
    for header in (False, True):
        with pytest.raises(UserError, match=f"has {1024 * header} bytes, which are no tokens"):
            tokens(write(tmp_path / "empty.bin", [], header=header), vocab_size=9)
    with pytest.raises(UserError, match="a.bin: 5 tokens make no window of block_size 5 . 1 tok"):
        tokens(path, vocab_size=9, block_size=5)


def test_a_file_of_another_type_or_length_than_it_has_is_refused(tmp_path):
    small = np.arange(600) % 50
    wide = write(tmp_path / "wide.bin", small, "<u4")
    with pytest.raises(UserError, match=r"wide.bin has 2400 bytes, of .* is 0: set dtype to uint3"):
        tokens(wide, vocab_size=50, block_size=2)
    assert len(tokens(wide, vocab_size=50, block_size=2, dtype="uint32")[0]) == 299
    zeros = write(tmp_path / "zeros.bin", np.zeros(600))
    assert len(tokens(zeros, vocab_size=50, block_size=2)[0]) == 299
    stated = write(tmp_path / "stated.bin", small, "<u4", header=True)
    words = "are 1200 tokens of 2 bytes, but its header states 600: check dtype, or copy the file"
    with pytest.raises(UserError, match=words):
        tokens(stated, vocab_size=50, block_size=2)
    with open(stated, "rb+") as file:
        file.truncate(1024 + 400)
    with pytest.raises(UserError, match="are 100 tokens of 4 bytes, but its header states 600"):
        tokens(stated, vocab_size=50, block_size=2, dtype="uint32")


@pytest.fixture
def limit():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_more_files_are_mapped_than_a_process_may_open_at_first(tmp_path, limit, monkeypatch):
    paths = [write(tmp_path / f"{number:02d}.bin", range(3)) for number in range(80)]
    soft = len(os.listdir("/proc/self/fd")) + 40
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, limit[1]))
    train, _ = tokens(paths, vocab_size=3, block_size=2)
    assert len(windows(train)) == 80
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (soft, 100))
    words = r"^train.dataset_args.train names 80 files, but a process may open only 100 \(ulimit"
    with pytest.raises(UserError, match=words):
        tokens(paths, vocab_size=3, block_size=2)


def test_a_token_beyond_the_vocabulary_names_its_file(tmp_path):
    paths = [
        write(tmp_path / f"{name}.bin", values)
        for name, values in (("good", [0, 1, 2]), ("bad", [1, 7, 0]), ("fine", [6, 6, 6]))
    ]
    train, _ = tokens(paths, vocab_size=7, block_size=2)
    train.batch(torch.tensor([0, 2]))
    words = r"bad.bin has the token 7, but vocab_size is 7: set train.dataset_args.vocab_size to"
    with pytest.raises(UserError, match=words):
        train.batch(torch.tensor([0, 2, 1]))


def test_the_digest_depends_on_content_and_order_and_not_on_the_place(tmp_path):
    (tmp_path / "other").mkdir()
    a, b = write(tmp_path / "a.bin", range(5)), write(tmp_path / "b.bin", range(9))
    same = write(tmp_path / "other" / "x.bin", range(5))
    changed = write(tmp_path / "c.bin", [*range(4), 5])

    def digest(*paths):
        return tokens(list(paths), vocab_size=9, block_size=2)[0].digest

    assert digest(a) == digest(same)
    assert len({digest(a), digest(b), digest(changed), digest(a, b), digest(b, a)}) == 5


def test_the_batches_of_tokens_come_in_the_order_of_the_epoch(tmp_path):
    path = write(tmp_path / "a.bin", range(41))
    train, _ = tokens(path, vocab_size=41, block_size=4)
    feed = feed_of(train, micro_batch_size=5)
    assert feed.example().shape == (5, 5)
    first = [batch[:, 0].tolist() for step in range(2) for batch in feed.micro_batches(step)]
    assert sorted(sum(first, [])) == list(range(0, 40, 4))


def make_texts(folder, num=12):
    for number in range(num):
        (folder / f"d{number % 2}").mkdir(exist_ok=True, parents=True)
        (folder / f"d{number % 2}" / f"{number:02d}.txt").write_text(chr(97 + number) * 40)
    (folder / "notes.md").write_text("#" * 99)


def characters(source):
    return {chr(token) for window in windows(source) for token in window}


def parts_of(path, **args):
    train, held_out = text(str(path), block_size=8, **args)
    assert held_out is not None
    return train, held_out


def test_a_text_file_is_split_at_its_last_tenth(tmp_path):
    content = bytes(range(256)) * 4
    (tmp_path / "x").write_bytes(content)
    train, held_out = parts_of(tmp_path / "x")
    assert (train.vocab_size, train.bytes_per_token) == (256, 1.0)
    assert bytes(train.files[0]) == content[:921] and bytes(held_out.files[0]) == content[921:]


def test_every_tenth_file_of_a_folder_is_held_out(tmp_path):
    make_texts(tmp_path)
    train, held_out = parts_of(tmp_path)
    # d0 has a, c, ...: the tenth file in the order of the paths is d1/07.txt.
    assert characters(held_out) == {"h"}
    assert characters(train) == set("abcdefghijkl") - {"h"}
    train, held_out = parts_of(tmp_path / "d0")
    assert characters(held_out) == {"k"}  # of fewer than ten files the last one
    train, _ = parts_of(tmp_path, pattern="0*.txt")
    assert not characters(train) & set("kl")


def test_empty_files_of_a_folder_are_left_out(tmp_path):
    make_texts(tmp_path)
    (tmp_path / "d0" / "99.txt").touch()
    _, held_out = parts_of(tmp_path / "d0")
    assert characters(held_out) == {"k"}  # the last file with content


def test_a_held_out_text_of_its_own_leaves_the_training_text_whole(tmp_path):
    make_texts(tmp_path)
    train, held_out = parts_of(tmp_path / "d0", held_out=str(tmp_path / "d1" / "01.txt"))
    assert characters(held_out) == {"b"} and characters(train) == set("acegik")
    assert train.digest != held_out.digest


def test_texts_that_are_missing_or_too_short_are_named_with_the_key(tmp_path):
    make_texts(tmp_path)
    (tmp_path / "short.txt").write_text("x" * 50)
    for path, words in [
        (tmp_path / "gone", "train.dataset_args.path: .*gone is neither a file nor a folder"),
        (tmp_path / "d0" / "00.txt", "00.txt: 4 tokens make no window of block_size 8 . 1 tokens"),
        ("texts", "train.dataset_args.path: texts is relative"),
    ]:
        with pytest.raises(UserError, match=words):
            parts_of(path)
    with pytest.raises(UserError, match=r"path: .* has no files \*.py"):
        parts_of(tmp_path, pattern="*.py")
    with pytest.raises(UserError, match="held_out: .*gone is neither"):
        parts_of(tmp_path, held_out=str(tmp_path / "gone"))


def bytes_of(source):
    return b"".join(bytes(file) for file in source.files)


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A folder in place of Python's standard library, with 23 modules."""
    for number in range(23):
        package = tmp_path / ("json" if number > 15 else ".")
        package.mkdir(exist_ok=True)
        (package / f"m{number:02d}.py").write_text(f"<{number:02d}>" + "x" * 20)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    return tmp_path


def test_held_out_modules_are_not_in_the_training_part(library):
    train, held_out = python_source(block_size=8)
    assert bytes_of(held_out).count(b"<") == 2 and bytes_of(train).count(b"<") == 21
    numbers = [
        {
            bytes_of(part)[at + 1 : at + 3]
            for at in range(len(bytes_of(part)))
            if bytes_of(part)[at : at + 1] == b"<"
        }
        for part in (train, held_out)
    ]
    assert numbers[1] == {b"09", b"19"} and not numbers[0] & numbers[1]
    assert (train.block_size, held_out.block_size) == (8, 8)


def test_as_many_modules_are_taken_as_fit(library):
    train, held_out = python_source(block_size=8, max_bytes=24 * 4 + 23)
    assert len(bytes_of(train)) == 3 * 24 and bytes_of(held_out).startswith(b"<03>")
    with pytest.raises(UserError, match="1 of 23 files fit max_bytes 47: allow 2, one of them is"):
        python_source(block_size=8, max_bytes=47)
    with pytest.raises(UserError, match="0 of 23 files fit max_bytes 1"):
        python_source(block_size=8, max_bytes=1)


def test_an_interpreter_without_sources_is_a_user_error(tmp_path, monkeypatch):
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / "none"))
    with pytest.raises(UserError, match=f"python_source: {tmp_path}/none has no source files"):
        python_source()


def test_this_interpreters_sources_make_two_parts_of_python():
    train, held_out = python_source(block_size=64, max_bytes=400_000)
    assert len(train) > 8 * len(held_out) > 0
    assert b"def " in bytes_of(train) and b"def " in bytes_of(held_out)
    assert max(max(window) for window in windows(held_out)) < 256
    again, _ = python_source(block_size=64, max_bytes=400_000)
    assert again.digest == train.digest != held_out.digest
