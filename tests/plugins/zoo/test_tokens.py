"""Windows of token files, of the bytes of text files, and of Python's own source code."""

import re
import struct
import sysconfig

import numpy as np
import pytest
import torch

from slurm_job_kit.trainer.errors import UserError
from slurm_job_kit.trainer.plugins.zoo.tokens import python_source, tokens


def write(path, values, dtype="<u2", header=False):
    head = struct.pack("<256i", 20240520, 1, len(values), *[0] * 253) if header else b""
    path.write_bytes(head + np.asarray(values, dtype=dtype).tobytes())
    return str(path)


def windows(source):
    return source.batch(torch.arange(len(source))).tolist()


def test_windows_overlap_by_one_token(tmp_path):
    path = write(tmp_path / "a.bin", range(12))  # 3 windows of 3 + 1, 2 tokens are left out
    train, held_out = tokens(path, vocab_size=100, block_size=3)
    assert held_out is None
    assert windows(train) == [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7, 8, 9]]
    mixed = train.batch(torch.tensor([2, 0, 2]))
    assert mixed.dtype == torch.int64 and mixed[:, 0].tolist() == [6, 0, 6]


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_both_types_are_read_with_and_without_a_header(tmp_path, dtype):
    values = [5, 60000, 7, 8, 9]
    kind = {"uint16": "<u2", "uint32": "<u4"}[dtype]
    paths = [write(tmp_path / f"{header}.bin", values, kind, header) for header in (False, True)]
    train, held_out = tokens(paths[0], 60001, paths[1], block_size=4, dtype=dtype)
    assert held_out is not None
    assert windows(train) == windows(held_out) == [values]


def test_files_that_hold_no_such_tokens_are_named_with_the_key(tmp_path):
    path = write(tmp_path / "a.bin", range(5))
    for args, words in [
        ({"train": path, "dtype": "int64"}, "dtype is 'int64': write uint16 or uint32"),
        ({"train": path, "dtype": "uint32"}, "train: .*a.bin has 10 bytes, .* of 4 bytes each"),
        ({"train": f"{tmp_path}/b.bin"}, "train: .*b.bin is no file"),
        ({"train": path, "held_out": f"{tmp_path}/b"}, "held_out: .*b is no file"),
        ({"train": "data/a.bin"}, "train: data/a.bin is relative, but .*\n.* /data/data/a"),
    ]:
        with pytest.raises(UserError, match=f"^train.dataset_args.{words}"):
            tokens(**{"vocab_size": 9, "block_size": 2, **args})
    for header in (False, True):
        with pytest.raises(UserError, match=f"has {1024 * header} bytes, which are no tokens"):
            tokens(write(tmp_path / "empty.bin", [], header=header), vocab_size=9)
    with pytest.raises(UserError, match="a.bin: 5 tokens make no window of block_size 5 . 1 tok"):
        tokens(path, vocab_size=9, block_size=5)


def test_a_token_beyond_the_vocabulary_names_the_file(tmp_path):
    train, _ = tokens(write(tmp_path / "bad.bin", [0, 1, 2, 7, 0]), vocab_size=7, block_size=2)
    train.batch(torch.tensor([0]))
    words = r"bad.bin has the token 7, but vocab_size is 7\n  hint: set train.dataset_args.v"
    with pytest.raises(UserError, match=words):
        train.batch(torch.tensor([0, 1]))


def test_the_digest_depends_on_the_content_and_not_on_the_place(tmp_path):
    (tmp_path / "other").mkdir()
    paths = [write(tmp_path / name, range(5)) for name in ("a.bin", "other/x.bin")]
    paths.append(write(tmp_path / "c.bin", [*range(4), 5]))
    first, same, changed = (tokens(path, 9, block_size=2)[0].digest for path in paths)
    assert first == same != changed


def bytes_of(source):
    return bytes(source.tokens)


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
    numbers = [{*re.findall(rb"<(\d\d)>", bytes_of(part))} for part in (train, held_out)]
    assert numbers[1] == {b"09", b"19"} and not numbers[0] & numbers[1]
    assert (train.block_size, held_out.block_size) == (8, 8)


def test_as_many_modules_are_taken_as_fit(library):
    train, held_out = python_source(block_size=8, max_bytes=24 * 4 + 23)
    assert len(bytes_of(train)) == 3 * 24 and bytes_of(held_out).startswith(b"<03>")
