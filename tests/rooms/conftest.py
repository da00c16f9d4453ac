"""The fixtures of the tests of the core."""

from tests.core.conftest import (
    fake_slurm as fake_slurm,
)
from tests.core.conftest import (
    file_client as file_client,
)
from tests.core.conftest import (
    frozen_code as frozen_code,
)
from tests.core.conftest import (
    guarded as guarded,
)
from tests.core.conftest import (
    here as here,
)
from tests.core.conftest import (
    hosts as hosts,
)
from tests.core.conftest import (
    mistake as mistake,
)
from tests.core.conftest import (
    no_name_server as no_name_server,
)
from tests.core.conftest import (
    no_reader_left as no_reader_left,
)
from tests.core.conftest import (
    process_group as process_group,
)
from tests.core.conftest import (
    refuse as refuse,
)
from tests.core.conftest import (
    run as run,
)
from tests.core.conftest import (
    slurm as slurm,
)
from tests.core.conftest import (
    spec_file as spec_file,
)
from tests.core.conftest import (
    take as take,
)
