"""What the trainer takes of jobs/: all that crosses from one to the other is in this list.

pyproject.toml lets mypy and ruff take an import in here for a name that others may import.
"""

from ..jobs import gpus, installation, records, shared_files
from ..jobs.batch_sizes import BatchSizes
from ..jobs.checkpoint import reader
from ..jobs.checkpoint.manifest import MALFORMED, DamageError, FileDigest, Manifest, NamedFile
from ..jobs.checkpoint.names import (
    ASIDE_PREFIX,
    BEST,
    LATEST,
    MANIFEST,
    QUARANTINE_PREFIX,
    TEMPORARY_PREFIX,
    checkpoint_name,
    checkpoint_names,
    checkpoint_step,
    free_name,
    point_at_best,
    read_pointer,
    write_pointer,
)
from ..jobs.checkpoint.part_file import Entry, HashedSink, header, part_name
from ..jobs.checkpoint.reader import Contents, with_retries
from ..jobs.console import (
    LAYOUT,
    begin_lines_with_time,
    format_duration,
    format_metrics,
    printable,
    quantity,
    with_time,
)
from ..jobs.errors import HINT, PEER_TEXTS, TRANSIENT_ERRNOS, UserError, in_words
from ..jobs.kinds import KINDS, OF_MEMORY, Kind
from ..jobs.known_causes import REPEATED, known_cause
from ..jobs.log_text import on_a_screen
from ..jobs.records import RecordError, training
from ..jobs.records.ended import NewestCheckpoint
from ..jobs.records.frozen import Provenance, ProvenanceOrigin, SpecChange
from ..jobs.records.nodes import AttemptPlan, RankError, node_name
from ..jobs.records.queued import OwningAttempt
from ..jobs.records.training import Best, Metric, Outcome
from ..jobs.rooms import ROOMS, missing
from ..jobs.rundir import AttemptDir, RunDir, Timeline, fsync_directory, replacing
from ..jobs.spec import METRIC_MODES, OPTIMIZERS, Checkpoint, Spec, Train
from ..jobs.stop_signals import block_stop_signals
