# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=sh
# Slurm with two nodes in the machine: the unchanged files of packaging/slurm, munge, and the users alice and bob. For packaging/tests/slurm
# and packaging/tests/slurm-demo, in the Debian system with the layer of Slurm and CRIU.

LOG=/var/log/slurm

# Does what the scripts of the packages would have done.
prepare() {
	groupadd --system fermata
	for user in munge slurm mysql; do useradd --system "$user"; done
	useradd --uid 1500 --create-home --groups fermata alice
	useradd --uid 1501 --create-home --groups fermata bob
	for program in slurmctld slurmd slurmstepd; do ln -s "$program-wlm" "/usr/sbin/$program"; done
	mkdir -p /run/munge /var/log/munge /var/lib/munge /etc/munge /run/mysqld /var/lib/mysql /var/spool/slurmctld $LOG /etc/slurm
	head -c 1024 /dev/urandom >/etc/munge/munge.key
	chmod 400 /etc/munge/munge.key
	chown -R munge:munge /run/munge /var/log/munge /var/lib/munge /etc/munge
	chown -R mysql:mysql /run/mysqld /var/lib/mysql
	chmod 755 /run/munge
	chgrp fermata /dev/fermata?
	chmod 660 /dev/fermata?
	hostname fermata
	ip link set lo up
	ip address add 10.99.0.1/32 dev lo
	echo "10.99.0.1 fermata n1 n2 n3" >>/etc/hosts
	cp /fermata/packaging/slurm/*.conf /fermata/packaging/slurm/fermata.toml /etc/slurm/
	install -m 755 /fermata/packaging/slurm/fermata-prolog /fermata/packaging/slurm/fermata-epilog /etc/slurm/
	chmod 600 /etc/slurm/slurmdbd.conf
	slurm_elsewhere
	install -m 755 /machine/bin/fermata-slurm /machine/bin/fermatactl /machine/bin/fermata-checkpoint /usr/bin/
	mkdir -p /usr/lib/criu
	cp /fermata/build/criu/fermata.so /usr/lib/criu/
	install -m 755 /fermata/build/criu/mixture /usr/bin/mixture
	# As docs/deploy/slurm.md says: users of cards may dump and restore their own programs.
	chgrp fermata /usr/sbin/criu
	chmod 750 /usr/sbin/criu
	setcap cap_checkpoint_restore+ep /usr/sbin/criu
	# The limit that systemd gives slurmd: systemd's `infinity` is `unlimited` in the shell.
	ulimit -l "$(sed -n 's/^LimitMEMLOCK=//p' /fermata/packaging/slurm/memlock.conf | sed 's/infinity/unlimited/')"
	setpriv --reuid=munge --regid=munge --clear-groups munged
}
# The prolog and the epilog find Slurm where installing has found it, in a folder that is in no path. There scontrol notes who calls it, and
# waits as long as /tmp/delay exists.
slurm_elsewhere() {
	mkdir -p /opt/slurm/bin
	ln -s /usr/bin/sacct /usr/bin/sacctmgr /opt/slurm/bin/
	cat >/opt/slurm/bin/scontrol <<-'E'
		#!/bin/sh
		echo "$SLURM_JOB_ID" >>/tmp/asked
		while [ -e /tmp/delay ]; do sleep 0.1; done
		exec /usr/bin/scontrol "$@"
	E
	chmod 755 /opt/slurm/bin/scontrol
	sed -i 's|/usr/bin/scontrol|/opt/slurm/bin/scontrol|' /etc/slurm/fermata-prolog /etc/slurm/fermata-epilog
}
as() { user=$1; shift; (cd "/home/$user" && exec setpriv --reuid="$user" --regid="$user" --init-groups env HOME="/home/$user" USER="$user" "$@"); }
wait_until() { tries=0; until "$@" >/tmp/waits 2>&1; do [ $((tries += 1)) -lt 600 ] || { cat /tmp/waits; return 1; }; sleep 0.3; done; }
nodes_are() { [ "$(sinfo --noheader --Node --format=%T | sort -u)" = "$1" ]; }
database_answers() { mariadb --execute "SELECT 1"; }
accounting_answers() { sacctmgr --noheader show cluster; }
start_accounting() {
	mariadb-install-db --user=mysql --datadir=/var/lib/mysql >$LOG/mariadb-install.log 2>&1 || return
	mariadbd --user=mysql --datadir=/var/lib/mysql --skip-networking --socket=/run/mysqld/mysqld.sock >$LOG/mariadb.log 2>&1 &
	wait_until database_answers && slurmdbd && wait_until accounting_answers && /fermata/packaging/slurm/accounting >"$LOG/accounting.log"
}
# A node has only its own cards in /dev, as on a separate machine: Slurm only keeps jobs away from the cards of the node's gres.conf.
start_node() {
	unshare --mount sh -ec '
		mkdir -p /tmp/dev
		mount -t tmpfs dev /tmp/dev
		node=$1
		shift
		cp -a /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty "$@" /tmp/dev/
		ln -s /proc/self/fd /tmp/dev/fd
		mkdir /tmp/dev/pts /tmp/dev/shm
		mount --bind /dev/pts /tmp/dev/pts
		chmod 1777 /tmp/dev/shm
		mount --move /tmp/dev /dev
		exec slurmd -N "$node"' start_node "$@"
}
start_slurm() {
	start_accounting && slurmctld && start_node n1 /dev/fermata0 && start_node n2 /dev/fermata1 /dev/fermata2 && { [ -z "$OTHERS" ] || start_node n3 $OTHERS; } && wait_until nodes_are idle && return
	sinfo; tail -n 20 $LOG/*.log
	return 1
}
# Submits a batch job: user, name of its output in the home folder, options of sbatch, --, and the command of its script. Prints its number.
submit() {
	user=$1 name=$2
	shift 2
	options=
	while [ "$1" != -- ]; do options="$options $1"; shift; done
	shift
	printf '#!/bin/sh\n%s\n' "$*" >"/tmp/$name.sh"
	chmod 755 "/tmp/$name.sh"
	# shellcheck disable=SC2086 # options are words
	as "$user" sbatch --parsable --open-mode=append --output="/home/$user/$name" --job-name="$name" $options "/tmp/$name.sh"
}
state_is() { [ "$(squeue --noheader --states=all --jobs="$1" --format=%T)" = "$2" ]; }
node_is() { [ "$(squeue --noheader --jobs="$1" --states=RUNNING --format=%N)" = "$2" ]; }
ends() { wait_until state_is "$1" COMPLETED && return; scontrol show job "$1"; tail -n 20 $LOG/*.log; return 1; }
# Makes all jobs on a node leave it, to continue on another node. Slurm delays them, unless their start time is changed.
drain() {
	jobs=$(squeue --noheader --nodelist="$1" --states=RUNNING --format=%A)
	scontrol update NodeName="$1" State=DRAIN Reason=maintenance
	for job in $jobs; do scontrol requeue "$job"; done
	for job in $jobs; do wait_until state_is "$job" PENDING; scontrol update JobId="$job" StartTime=now; done
}
undrain() { scontrol update NodeName="$1" State=RESUME; }
cgroup_of() { find /sys/fs/cgroup -type d -name "job_$1" | head -n 1; }
# A figure of the job's group on a card.
figure() { fermatactl --json group "$1" "$(cgroup_of "$2")" | sed "s/.*\"$3\":\([0-9a-z]*\)[,}].*/\1/"; }
comment_of() { sacct --allocations --noheader --parsable2 --format=AdminComment%400 --jobs="$1"; }
# The comment of job $1 has the time on node $2. The epilog runs after the job.
has_time_on() { comment_of "$1" | grep "card seconds:.* $2=[0-9.]*[1-9]"; }
