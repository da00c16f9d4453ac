#!/bin/bash
# The job of `doctor --probe`: FOLDER PYTHON [PROCESS]. It shows what a site does with two nodes: who
# gets which signal at a requeue, how late a node sees a file of the other, how fast both add tensors.
# doctor copies this file into FOLDER, which all nodes see; its log lies there, too.
folder=$1 python=$2 process=${3:-batch script} restarts=${SLURM_RESTART_COUNT:-0}
file=$folder/seen-$SLURM_JOB_ID-$restarts
# No $(...): a signal in the middle of one breaks bash 5.2 (measured).
say() { printf '%(%T)T %s %s: %s\n' -1 "$SLURMD_NODENAME" "$process" "$*"; }
# shellcheck disable=SC2064 # each trap has its own name
for name in CONT TERM INT USR1 USR2; do trap "say got SIG$name" "$name"; done

if [ "$process" = "batch script" ]; then
    say "start $((restarts + 1)) of job $SLURM_JOB_ID"
    srun bash "$folder/probe.sh" "$folder" "$python" process &
    if [ "$restarts" = 0 ]; then
        sleep 5 # until both processes wait for signals
        scontrol requeue "$SLURM_JOB_ID" && say "scontrol requeue: accepted"
    fi
    while kill -0 $! 2>/dev/null; do wait; done # a signal ends a wait
    say "end"
    exit
fi
for ((second = 0; restarts == 0 && second < 60; second++)); do sleep 1; done # the requeue ends it
if [ "$SLURM_PROCID" = 0 ]; then
    sleep 3 # the other node's client remembers that the file is missing
    date +%s.%N >"$file"
else
    until [ -s "$file" ]; do sleep 0.1; done
    late=$(date +%s.%N | awk -v written="$(<"$file")" '{printf "%.1f", $1 - written}')
    say "sees a new file of the other node after $late s, by both clocks"
fi
export MASTER_ADDR=$SLURM_LAUNCH_NODE_IPADDR MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export RANK=$SLURM_PROCID WORLD_SIZE=2
say "$("$python" -c '
import os, time, torch, torch.distributed as dist
device = "cuda" if torch.cuda.is_available() else "cpu"
dist.init_process_group("nccl" if device == "cuda" else "gloo")
tensor = torch.ones(1 << 24, device=device)
for number in range(6):
    if number == 1:  # the first one connects
        began = time.monotonic()
    dist.all_reduce(tensor)
    tensor[0].item()
gb_per_s = 5 * (1 << 26) / 1e9 / (time.monotonic() - began)
print(f"all-reduce of 64 MiB by {dist.get_backend()}: {gb_per_s:.2f} GB/s", flush=True)
os._exit(0)  # the end of gloo may abort the process (torch 2.13)
' 2>&1 | tail -n 1)"
