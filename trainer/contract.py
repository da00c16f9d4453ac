"""What the trainer takes of jobs/: all that crosses from one to the other is in this list."""

from __future__ import annotations

from ..jobs import gpus, installation, records, shared_files
from ..jobs.batch_sizes import BatchSizes
from ..jobs.checkpoint import manifest, part_file, reader
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
from ..jobs.checkpoint.part_file import DIGEST_BYTES, BlockSink, Entry, header, part_name
from ..jobs.checkpoint.reader import Contents, with_retries
from ..jobs.console import (
    begin_lines_with_time,
    format_duration,
    format_metrics,
    quantity,
    with_time,
)
from ..jobs.errors import (
    HINT,
    PEER_TEXTS,
    TRANSIENT_ERRNOS,
    UserError,
    in_words,
)
from ..jobs.kinds import Kind
from ..jobs.known_causes import REPEATED, known_cause
from ..jobs.log_text import on_a_screen
from ..jobs.records import RecordError, training
from ..jobs.records.ended import NewestCheckpoint
from ..jobs.records.frozen import Provenance, ProvenanceOrigin, SpecChange
from ..jobs.records.nodes import (
    AttemptPlan,
    RankError,
    node_name,
)
from ..jobs.records.queued import OwningAttempt
from ..jobs.records.training import Best, Metric, Outcome
from ..jobs.rooms import ROOMS, missing
from ..jobs.rundir import (
    STEPS_WRITER,
    AttemptDir,
    RunDir,
    Timeline,
    fsync_directory,
)
from ..jobs.spec import (
    METRIC_MODES,
    OPTIMIZERS,
    Checkpoint,
    Spec,
    Train,
)
from ..jobs.stop_signals import STOP_SIGNALS, block_stop_signals, unblock_stop_signals

__all__ = [
    "ASIDE_PREFIX",
    "AttemptDir",
    "AttemptPlan",
    "BEST",
    "BatchSizes",
    "Best",
    "BlockSink",
    "Checkpoint",
    "Contents",
    "DIGEST_BYTES",
    "DamageError",
    "Entry",
    "FileDigest",
    "HINT",
    "Kind",
    "LATEST",
    "MALFORMED",
    "MANIFEST",
    "METRIC_MODES",
    "Manifest",
    "Metric",
    "NamedFile",
    "NewestCheckpoint",
    "OPTIMIZERS",
    "Outcome",
    "OwningAttempt",
    "PEER_TEXTS",
    "Provenance",
    "ProvenanceOrigin",
    "QUARANTINE_PREFIX",
    "REPEATED",
    "ROOMS",
    "RankError",
    "RecordError",
    "RunDir",
    "STEPS_WRITER",
    "STOP_SIGNALS",
    "Spec",
    "SpecChange",
    "TEMPORARY_PREFIX",
    "TRANSIENT_ERRNOS",
    "Timeline",
    "Train",
    "UserError",
    "begin_lines_with_time",
    "block_stop_signals",
    "checkpoint_name",
    "checkpoint_names",
    "checkpoint_step",
    "format_duration",
    "format_metrics",
    "free_name",
    "fsync_directory",
    "gpus",
    "header",
    "in_words",
    "installation",
    "known_cause",
    "manifest",
    "missing",
    "node_name",
    "on_a_screen",
    "part_file",
    "part_name",
    "point_at_best",
    "quantity",
    "read_pointer",
    "reader",
    "records",
    "shared_files",
    "training",
    "unblock_stop_signals",
    "with_retries",
    "with_time",
    "write_pointer",
]
