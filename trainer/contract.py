"""What the trainer takes of jobs/: all that crosses from one to the other is in this list.

pyproject.toml lets mypy and ruff take an import in here for a name that others may import.
"""

from ..jobs.base import files, gpus, installation, packages
from ..jobs.base.console import (
    LAYOUT,
    begin_lines_with_time,
    format_duration,
    format_metrics,
    printable,
    quantity,
    with_time,
)
from ..jobs.base.errors import HINT, PEER_TEXTS, TRANSIENT_ERRNOS, UserError, in_words
from ..jobs.base.log_text import on_a_screen
from ..jobs.base.stop_signals import block_stop_signals
from ..jobs.contract import records
from ..jobs.contract.batch_sizes import BatchSizes
from ..jobs.contract.checkpoint import reader
from ..jobs.contract.checkpoint.manifest import (
    MALFORMED,
    DamageError,
    FileDigest,
    Manifest,
    NamedFile,
)
from ..jobs.contract.checkpoint.names import (
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
from ..jobs.contract.checkpoint.part_file import Entry, HashedSink, header, part_name
from ..jobs.contract.checkpoint.reader import Contents, with_retries
from ..jobs.contract.kinds import KINDS, OF_MEMORY, Kind
from ..jobs.contract.known_causes import REPEATED, known_cause
from ..jobs.contract.rank_start import begin as begin_rank
from ..jobs.contract.records import RecordError, training
from ..jobs.contract.records.ended import NewestCheckpoint
from ..jobs.contract.records.frozen import Provenance, ProvenanceOrigin, SpecChange
from ..jobs.contract.records.nodes import AttemptPlan, RankError, node_name
from ..jobs.contract.records.queued import OwningAttempt
from ..jobs.contract.records.timeline import Timeline
from ..jobs.contract.records.training import Best, Outcome
from ..jobs.contract.rundir import AttemptDir, RunDir
from ..jobs.contract.spec import METRIC_MODES, OPTIMIZERS, Checkpoint, Spec, Train
from ..jobs.plugins import PLUGINS, missing
