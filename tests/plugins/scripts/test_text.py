"""What the text of a script shows that may go wrong in a job."""

import pytest

from slurm_job_kit.jobs.__main__ import main
from slurm_job_kit.jobs.contract.spec import Launch, Slurm, Spec
from slurm_job_kit.jobs.plugins.scripts.text import refuse_queuing, warnings_of

FOUND = {
    "import os\nout = f\"runs/{os.environ['SLURM_JOB_ID']}\"": "2 reads SLURM_JOB_ID",
    "import os\nos.path.expandvars('out/$SLURM_JOBID')": "2 reads SLURM_JOB_ID",
    "import os\nx = os.getenv('SLURM_JOB_ID') if 'SLURM_JOB_ID' in os.environ else 0": "2 reads",
    "import os\nos.environ['MASTER_ADDR'] = 'localhost'": "2 sets MASTER_ADDR",
    "import torch.multiprocessing as mp\nmp.spawn(print, nprocs=2)": "2 starts ranks of its own",
    "from torch.distributed.run import main\nmain(['x.py'])": "1 starts ranks of its own",
    "p.add_argument(\n  '--local_rank', default=-1)\nif a.local_rank == -1:\n  x = 1": "2 takes",
    "import os\nrank = int(os.environ['SLURM_PROCID'])\nos.environ['RANK'] = rank": "2 reads the",
    "if int(os.environ['LOCAL_RANK']) == 0:\n\n  x = 1\n  torch.save(x, 'a')\n": "4 saves where",
    "  if self.local_rank == 0 and n % 2 == 0:\n    self._save_snapshot(n)": "2 saves where",
    "if args.local_rank in [-1, 0]: torch.save(x, 'a')": "1 saves where LOCAL_RANK is 0",
    "rank = int(\n  os.environ.get(\n    'SLURM_PROCID', 0\n  )\n)": "3 reads the number",
    "for rank in x:\n  mp.Process(target=run, args=(rank, 2)).start()": "2 starts ranks",
}
NOTHING = [
    '"""\nos.environ["MASTER_ADDR"] = "n1"\nsubprocess.run("sbatch a.sh")\n"""',
    "x = env.get('SLURM_JOB_ID') is None\ny = bool(env['SLURM_JOB_ID'])\nz = '/tmp/$SLURM_JOB_ID'",
    "import os\ndel os.environ['SLURM_NTASKS']\nos.environ['SLURM_NTASKS'] = '1'",
    "import os\nos.environ['MASTER_ADDR'] = os.environ.get('MASTER_ADDR', 'localhost')",
    "try:\n  rank = e['RANK']\nexcept KeyError:\n  rank = os.environ['SLURM_PROCID']",
    "if local_rank == 0 and rank == 0:\n  torch.save(x, 'a')",
    "import os\nos.system('sbatch a.sh')\noptimizer = torch.optim.SGD(x)",
    "import os\n# os.environ['MASTER_ADDR'] = SLURM_JOB_ID\nx = os.environ['MASTER_ADDR']",
    "import os\nif 'MASTER_ADDR' not in os.environ:\n  os.environ['MASTER_ADDR'] = 'localhost'",
    "print('job', env.get('SLURM_JOB_ID'))\nwandb.log({'job': env.get('SLURM_JOB_ID')})",
    "import torch.multiprocessing as mp\nif a:\n  x = 1\nelif 'RANK' not in e:\n  mp.spawn(1)",
    "import torch\nif not d.is_torchelastic_launched():\n  torch.multiprocessing.spawn(1)",
    "import numpy\nnumpy.random.SeedSequence(1).spawn(2)",
    "this is no Python",
    "from .... import x",
    "p.add_argument('--local_rank')\nimport os\nrank = os.environ['LOCAL_RANK']",
    "import os\nrank = int(os.environ.get('RANK', os.environ.get('SLURM_PROCID', 0)))",
    "if rank == 0:\n  torch.save(x, 'a')",
    '"""Start it by `srun python x.py`, or sbatch a.sh."""',
    "p.add_argument('--launcher', default='srun', help='srun or sbatch')",
    "import os\ndef evaluate(x):\n  os.system(f'sbatch {x}')\nloss.backward()",
]
QUEUES = {
    "import submitit\nsubmitit.AutoExecutor('log').submit(Trainer(args))": 1,
    "from dask_jobqueue import SLURMCluster": 1,
    "import subprocess as s\ns.check_call(\n  [\n    '/usr/bin/sbatch', 'a.sh'])": 4,
    "import subprocess, shlex\nsubprocess.run(shlex.split('srun python x.py'))": 2,
    "import os\ncmd = 'srun -n 2 python x.py'\nos.system(cmd)": 2,
}


def lines(folder, text, name="train.py", **launch):
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return of_nodes(2, folder, **(launch or {"script": "train.py"}))


def of_nodes(nodes, folder, **launch):
    spec = Spec(slurm=Slurm(nodes=nodes), launch=Launch(**launch))
    refuse_queuing(spec.launch, folder)
    return [*warnings_of(spec, folder)]


@pytest.mark.parametrize("text", FOUND)
def test_a_line_names_what_may_go_wrong_and_its_place(tmp_path, text):
    (line,) = lines(tmp_path, text)
    assert line.startswith(f"warning: train.py:{FOUND[text]}")


@pytest.mark.parametrize("text", NOTHING)
def test_what_goes_well_under_torchrun_and_texts_are_not_named(tmp_path, text):
    assert lines(tmp_path, text) == []


def test_a_module_of_ones_own_and_what_it_imports_are_read_too(tmp_path):
    lines(tmp_path, "import os\nos.environ['MASTER_ADDR'] = 'n1'", "mine/ranks.py")
    lines(tmp_path, "import os\nfolder = os.environ['SLURM_JOB_ID']", "mine/names.py")
    text = "from .ranks import x\nfrom . import names\n"
    found = lines(tmp_path, text, "mine/train.py", module="mine.train")
    assert sorted(each.split()[1] for each in found) == ["mine/names.py:2", "mine/ranks.py:2"]
    (tmp_path / "mine/train.py").rename(tmp_path / "mine/__main__.py")
    assert len(of_nodes(1, tmp_path, module="mine")) == 2
    assert of_nodes(1, tmp_path, module="not.here") == []
    lines(tmp_path, "rank = os.environ.get('RANK')", "mine/kit_stop.py")
    text = "from mine.kit_stop import Stop\nrank = os.environ['SLURM_PROCID']"
    assert len(lines(tmp_path, text, "mine/run.py", script="mine/run.py")) == 1


@pytest.mark.parametrize("args", [["--config", "conf/a.yaml"], ["--config=conf/a.yaml"]])
def test_a_config_of_the_script_is_read_too(tmp_path, args):
    lines(tmp_path, "# SLURM_JOB_ID\nout: ${oc.env:SLURM_JOB_ID}", "conf/a.yaml")
    (line,) = lines(tmp_path, "print(1)", script="train.py", args=args)
    assert line.startswith("warning: conf/a.yaml:2 reads SLURM_JOB_ID")


def test_a_save_where_the_local_rank_is_0_is_no_fault_on_one_node(tmp_path):
    assert lines(tmp_path, "if local_rank == 0:\n  torch.save(x, 'a')")
    assert of_nodes(1, tmp_path, script="train.py") == []


@pytest.mark.parametrize("text", QUEUES)
def test_a_script_that_queues_jobs_is_refused_with_its_line(here, capsys, text):
    (here / "x.py").write_text(text)
    assert main(["submit", "tiny.yaml", f"launch.script={here}/x.py", "--dry-run"]) == 2
    error = capsys.readouterr().err
    assert f"launch.script: x.py:{QUEUES[text]} queues a job" in error and "hint: " in error
