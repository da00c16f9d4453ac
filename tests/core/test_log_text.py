"""What a screen shows of logs of any shape, in bounded time and memory."""

import os
import time
import tracemalloc

import pytest

from slurm_job_kit.jobs.base import log_text
from slurm_job_kit.jobs.base.log_text import on_a_screen, read_end

LIMIT_S = 20
MIB = 1 << 20


@pytest.mark.parametrize("unit", [b"x", b"\x00", b"\xff\xfe", b"\x1b[31m", b"\r50%"])
def test_a_line_of_megabytes_is_cut_and_the_lines_around_it_stay(tmp_path, unit):
    log = tmp_path / "log"
    log.write_bytes(b"before\n" + unit * (5 * MIB // len(unit)) + b"\nafter\n")
    first, long, last = read_end(log)
    assert (first, last) == ("before", "after")
    assert len(long) < 3000


def test_the_end_of_a_log_of_gigabytes_comes_at_once(tmp_path):
    log = tmp_path / "log"
    with open(log, "wb") as file:  # sparse: 10 GB without a newline
        file.truncate(10 * 1000**3)
        file.seek(0, os.SEEK_END)
        file.write(b"\nstep 1\nstep 2\n")
    began = time.monotonic()
    tracemalloc.start()
    assert read_end(log, 2) == ["step 1", "step 2"]
    assert read_end(log, 100)[-1] == "step 2"
    assert tracemalloc.get_traced_memory()[1] < 8 * log_text.MAX_BYTES
    tracemalloc.stop()
    assert time.monotonic() - began < LIMIT_S


@pytest.mark.parametrize("block", [1, 7, 1 << 16])
def test_the_last_lines_are_found_whatever_the_blocks_are(tmp_path, monkeypatch, block):
    monkeypatch.setattr(log_text, "BLOCK_BYTES", block)
    log = tmp_path / "log"
    log.write_text("".join(f"line {n}\n" for n in range(1, 41)))
    assert read_end(log, 3) == ["line 38", "line 39", "line 40"]


def test_a_text_of_many_lines_is_cut_to_a_screen_with_its_begin_and_its_end():
    text = on_a_screen("\n".join(f"line {n}" + "x" * 9000 for n in range(100)) + "\n\n")
    lines = text.split("\n")
    assert len(lines) == log_text.SCREEN_LINES and max(map(len, lines)) < 500
    assert lines[0].startswith("line 0x") and lines[-1].startswith("line 99x")
    assert "[... 77 lines ...]" in text
