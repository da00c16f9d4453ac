#!/usr/bin/env bash
# Makes a machine of the second shape (user_site.py) inside of its namespaces, and stays as its
# first process, which ends last: the file client on the login machine and the nodes.
#   furnish.sh MACHINE ROOT [KEPT...]
# Below ROOT lie the cluster's files. KEPT are folders that users need although they may lie below a
# folder that only root may enter, such as root's home: the interpreter and the checkout.
set -euo pipefail
machine=$1 root=$2
shift 2
kept=("$@")
shared=$root/work

# A new instance: the options of the machine's own /proc stay. Source: proc(5), kernel 5.8.
mount -t proc -o hidepid=2 proc /proc
if [[ -w /sys/fs/cgroup/cgroup.procs ]]; then
    mount --bind "$root/etc/init-cgroup" /proc/1/cgroup
fi
mount --bind "$root/etc/passwd" /etc/passwd
mount --bind "$root/etc/group" /etc/group

# Hides FOLDER behind an empty one that all may enter; what is kept below it stays.
hide() {
    local folder=$1 mode=$2 stage=/mnt path
    local below=()
    for path in "${kept[@]}" "$root"; do
        if [[ $path/ == "$folder"/* ]]; then
            below+=("$path")
        fi
    done
    mount -t tmpfs tmpfs "$stage"
    for path in "${below[@]}"; do
        mkdir -p "$stage/$path"
        mount --rbind "$path" "$stage/$path"
    done
    mount -t tmpfs -o "mode=$mode" tmpfs "$folder"
    for path in "${below[@]}"; do
        mkdir -p "$path"
        mount --move "$stage/$path" "$path"
    done
    umount "$stage"
}

# The first folder on the way to PATH that others may not enter, empty if there is none.
closed() {
    local folder='' part
    local IFS=/
    for part in ${1#/}; do
        folder+=/$part
        if [[ ! $(stat --format=%A "$folder") =~ [xt]$ ]]; then
            echo "$folder"
            return
        fi
    done
}

for path in "${kept[@]}"; do
    folder=$(closed "$path")
    if [[ -n $folder ]]; then
        hide "$folder" 755
    fi
done
hide /tmp 1777
hide /var/tmp 1777
mount -t tmpfs -o mode=1777 tmpfs /dev/shm

echo $$ >"$root/run/$machine.first"
if [[ $machine == ctl ]]; then
    # The server: it sees the folder itself.
    exec sleep infinity
fi
# Attributes of files 3 to 60 s, of folders 30 to 60 s, absent names 30 s: nfs(5), its defaults.
exec "$root/run/file_client" "$shared" "$shared" 3 60 30 60 30
