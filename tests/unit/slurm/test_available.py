"""The names and the number of nodes in a spec are compared with what a site lists."""

import getpass

import pytest

from slurm_job_kit.jobs.slurm import available
from slurm_job_kit.jobs.spec import Slurm

PARTITIONS = """\
PartitionName=batch
   AllocNodes=ALL Default=YES QoS=N/A
   State=UP TotalCPUs=16 TotalNodes=4 SelectTypeParameters=NONE

PartitionName=big
   AllocNodes=ALL Default=NO QoS=N/A
   State=UP TotalCPUs=256 TotalNodes=64 SelectTypeParameters=NONE

PartitionName=vip
   AllowGroups=ALL AllowAccounts=vip,Physics AllowQos=ALL
   AllocNodes=ALL Default=NO QoS=N/A
   State=UP TotalCPUs=16 TotalNodes=4 SelectTypeParameters=NONE

PartitionName=slow
   AllowGroups=ALL AllowAccounts=ALL AllowQos=long
   AllocNodes=ALL Default=NO QoS=N/A
   State=UP TotalCPUs=16 TotalNodes=4 SelectTypeParameters=NONE
"""


@pytest.fixture
def site(fake_slurm):
    """The clients of a site with two partitions, two accounts and three features."""
    fake_slurm.install("sinfo", "")
    fake_slurm.install("sacctmgr", "")
    fake_slurm.answer("scontrol", PARTITIONS, when="--all show partition*")
    fake_slurm.answer("sacctmgr", "physics|normal,long\nbiology|normal\n", when="*associations*")
    fake_slurm.answer("sinfo", "a100,nvlink,a100,nvlink\n(null),(null)\nh100,h100\n")
    return fake_slurm


def found(**keys):
    """{key: text} of the problems."""
    return {str(each.path[1]): str(each) for each in available.problems(Slurm(**keys))}


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"nodes": 4},
        {"nodes": 64, "partition": "big"},
        {"nodes": 64, "partition": "batch,big"},
        {"account": "physics", "qos": "long"},
        {"partition": "vip", "account": "physics"},
        {"partition": "slow", "qos": "long"},
        {"partition": "vip,big", "account": "biology"},
        {"account": "Physics"},  # Slurm's accounts are in lower case
        {"qos": "LONG", "partition": "slow"},
        {"qos": "long"},
        {"qos": "normal,long"},  # a list: Slurm 24.11
        {"partition": "slow", "qos": "normal,long"},
        {"constraint": "[a100*2&h100*4]|nvlink"},
        {"partition": "other", "nodes": 999, "sbatch_args": {"clusters": "other"}},
    ],
)
def test_nothing_is_found_in_what_the_site_has(site, keys):
    assert found(**keys) == {}


@pytest.mark.parametrize(
    ("keys", "key", "text"),
    [
        ({"partition": "huge"}, "partition", "this site has batch (4 nodes), big (64 nodes)"),
        (
            {"partition": "vip", "account": "biology"},
            "account",
            "may not be used in partition vip\n  hint: partition vip takes jobs of account physics",
        ),
        ({"partition": "slow"}, "partition", "slow is not open to every qos"),
        ({"partition": "batch,huge"}, "partition", 'there is no partition "huge"'),
        ({"nodes": 5}, "nodes", "5 is more than partition batch has\n  hint: write 4 or fewer"),
        ({"nodes": 65, "partition": "batch,big"}, "nodes", "batch or big"),
        ({"account": "chemistry"}, "account", "are biology, physics"),
        ({"account": "biology", "qos": "long"}, "qos", "may use normal"),
        ({"qos": "gold"}, "qos", "may use long, normal"),
        ({"qos": "long,gold"}, "qos", '"gold"\n  hint: '),
        (
            {"constraint": "a100&v100"},
            "constraint",
            "feature v100\n  hint: its features are a100, ",
        ),
    ],
)
def test_what_the_site_lacks_is_found_with_what_it_has(site, keys, key, text):
    problems = found(**keys)
    assert list(problems) == [key]
    assert text in problems[key]


def test_a_site_without_a_default_partition_needs_one(site):
    none = PARTITIONS.replace("Default=YES", "Default=NO")
    site.answer("scontrol", none, when="--all show partition*")
    assert list(found()) == ["partition"]


def test_the_accounts_are_those_of_the_user(site):
    found(account="physics")
    (call,) = [call for call in site.calls if call.startswith("sacctmgr")]
    assert f"user={getpass.getuser()}" in call


def test_without_an_answer_nothing_is_found(site):
    for name in ("scontrol", "sinfo", "sacctmgr"):
        site.answer(name, error="Unable to contact", status=1)
    everything = {"partition": "x", "nodes": 999, "account": "x", "qos": "x", "constraint": "x"}
    assert found(**everything) == {}
