"""Workers read the same bits as the rank does, and fail with the same words."""

import os

import pytest
import torch

from slurm_job_kit.trainer.errors import UserError
from tests.core.data import test_feed
from tests.core.data.test_feed import SIZE, assert_same, stream
from tests.core.data_kit import feed_of
from tests.plugins.samples import test_by_sample, test_collate
from tests.plugins.samples.samples_kit import Chancy, Given

pytestmark = pytest.mark.usefixtures("no_reader_left")


def test_bits_do_not_depend_on_the_number_of_workers():
    steps = range(3, 12)  # from within an epoch, over the edge, to the end
    none, one, two = (stream(feed_of(Chancy(30), workers=n, **SIZE), steps) for n in (0, 1, 2))
    assert [len(step) for step in none] == [1, 2, 2, 2, 1, 2, 2, 2, 1]
    assert_same(one, none)
    assert_same(two, none)


def test_what_a_rank_reads_itself_a_worker_reads_alike(process_group):
    test_feed.test_batches_start_at_any_step_and_may_jump(Chancy, workers=1)
    test_feed.test_an_evaluation_is_exact_beats_and_can_be_repeated(None, Chancy, workers=2)
    test_collate.test_a_collate_of_the_user_makes_batches_of_any_shape(workers=1)


def test_an_error_in_a_worker_has_the_words_that_it_has_in_the_rank():
    test_by_sample.test_a_wrong_sample_is_a_user_error_in_one_line(
        test_by_sample.mixed, test_by_sample.NO_BATCH, workers=1
    )
    test_by_sample.test_an_exception_of_a_data_set_becomes_its_words_and_a_traceback(workers=1)
    test_collate.test_an_error_of_a_collate_has_its_key_and_traceback(workers=1)


def parent(index):
    """Samples that hold the pid of the reading process's parent."""
    return torch.tensor([float(os.getppid())]), index % 3


def test_a_rank_with_threads_forks_no_worker_itself(no_reader_left):
    """A forked child waits for ever if a native thread held CPython's lock over its threads."""
    feed = feed_of(Given(parent), workers=1, micro_batch_size=2)
    ((inputs, _),) = feed.micro_batches(0)
    assert int(inputs[0]) != os.getpid()
    feed.close()


@pytest.mark.filterwarnings("ignore:Got pickle error:UserWarning")  # torch warns, too
def test_a_data_set_that_cannot_be_pickled_is_a_user_error(no_reader_left):
    class Local(Chancy):
        pass

    feed = feed_of(Local(), workers=1, micro_batch_size=2)
    with pytest.raises(UserError, match="cannot be sent.*__getstate__.*num_workers to 0"):
        next(feed.micro_batches(0))
