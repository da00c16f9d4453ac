"""What a local run leaves to the command that comes after it in the same process."""

import signal
import subprocess
import threading

from slurm_job_kit.jobs.commands import local
from slurm_job_kit.jobs.rundir import write_json
from slurm_job_kit.jobs.spec import Launch


def test_a_stop_after_the_last_wait_is_no_stop_of_the_next_command():
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with local.stop_signals() as stops:
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)  # pytest has other threads
    assert stops.names == ["SIGINT"]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_a_stop_ends_the_wait_before_a_retry_and_the_end_of_a_child_does_not():
    with local.stop_signals() as stops:
        subprocess.run(["true"], check=True)
        threading.Timer(0.3, signal.pthread_kill, (threading.get_ident(), signal.SIGINT)).start()
        stops.pause(100)
    assert stops.names == ["SIGINT"]


def test_how_far_a_script_is_is_printed_with_each_new_report_and_not_of_a_trainer(run, capfd):
    for launch in (Launch(script="x.py"), Launch()):
        write_json(run.progress, {"step": 1})
        agent = subprocess.Popen(["sleep", "100"])
        with local.stop_signals() as stops:
            new = {"step": 7, "total": 9, "metrics": {"loss": 0.5}}
            threading.Timer(0.3, write_json, (run.progress, new)).start()
            threading.Timer(0.9, agent.kill).start()
            local.watch([agent], stops, launch, run)
    assert capfd.readouterr().err.count("step 7/9  loss 0.5") == 1
