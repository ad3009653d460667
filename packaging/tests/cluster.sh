# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=sh
# A cluster of one node: etcd, API server, scheduler, controllers, containerd, kubelet. For packaging/tests/cluster, in the Debian system
# with the layer of etcd and containerd. $PROGRAMS is the folder with the programs of Kubernetes, an argument of the test.

LOG=/report
NODE=fermata
ADDRESS=10.99.0.1
VERSION=0.1.0
export KUBECONFIG=/etc/kubernetes/config PATH="$PROGRAMS:$PATH"

# Under TCG on a busy machine a step of the cluster may take minutes. None of the waits is a measurement.
wait_until() { tries=0; until "$@" >/tmp/waits 2>&1; do [ $((tries += 1)) -lt 600 ] || { cat /tmp/waits; return 1; }; sleep 1; done; }
# Starts a program with a log of its own.
start() { name=$1; shift; "$@" >>"$LOG/$name.log" 2>&1 & }
logs() { for name in "$@"; do echo "$name:"; tail -n 15 "$LOG/$name.log"; done; return 1; }

prepare() {
	hostname $NODE
	ip link set lo up
	ip address add $ADDRESS/32 dev lo
	echo "$ADDRESS $NODE" >>/etc/hosts
	ulimit -l unlimited
	# Separate file systems, because overlayfs cannot be stacked on overlayfs, and because the kubelet checks the free space.
	for folder in containerd kubelet etcd containers; do mkdir -p "/var/lib/$folder"; mount -t tmpfs -o mode=755 "$folder" "/var/lib/$folder"; done
	mkdir -p /etc/kubernetes /etc/containerd /etc/cni/net.d /var/lib/kubelet/device-plugins
	cat >/etc/containerd/config.toml <<-END
		version = 2
		[plugins."io.containerd.grpc.v1.cri"]
		  sandbox_image = "localhost/busybox:1"
		  [plugins."io.containerd.grpc.v1.cri".cni]
		    bin_dir = "/usr/lib/cni"
	END
	cat >/etc/cni/net.d/10-pods.conf <<-END
		{"cniVersion": "0.4.0", "name": "pods", "type": "ptp", "ipam": {"type": "host-local", "subnet": "10.98.0.0/24"}}
	END
	echo 'secret,admin,1,"system:masters"' >/etc/kubernetes/tokens
	cat >$KUBECONFIG <<-END
		{"apiVersion": "v1", "kind": "Config", "current-context": "it",
		 "clusters": [{"name": "it", "cluster": {"server": "https://$ADDRESS:6443", "insecure-skip-tls-verify": true}}],
		 "users": [{"name": "it", "user": {"token": "secret"}}],
		 "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}]}
	END
	# cgroupsPerQOS keeps its default, which the plugin needs.
	cat >/etc/kubernetes/kubelet <<-END
		{"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration", "cgroupDriver": "cgroupfs",
		 "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}}, "authorization": {"mode": "AlwaysAllow"},
		 "enforceNodeAllocatable": ["pods"], "evictionHard": {"memory.available": "1Mi"}, "imageGCHighThresholdPercent": 100,
		 "runtimeRequestTimeout": "10m", "makeIPTablesUtilChains": false}
	END
	openssl genrsa -out /etc/kubernetes/accounts.key 2048 2>/dev/null
	openssl rsa -in /etc/kubernetes/accounts.key -pubout -out /etc/kubernetes/accounts.pub 2>/dev/null
}

# Built from the Containerfile as docs/deploy/kubernetes.md says, plus an image with a shell, in which the process of each pod's sandbox runs too.
image() { podman save "$1" | ctr --namespace k8s.io images import -; }
build() { podman build --isolation chroot --file /fermata/packaging/kubernetes/Containerfile --target "$1" --tag "$2" "$3" && image "$2"; }
images() {
	mkdir -p /etc/containers /tmp/image/bin
	printf '[storage]\ndriver = "vfs"\nrunroot = "/run/containers/storage"\ngraphroot = "/var/lib/containers"\n' >/etc/containers/storage.conf
	cp /usr/bin/busybox /tmp/image/bin/
	for applet in sh sleep mknod; do ln -s busybox "/tmp/image/bin/$applet"; done
	tar -C /tmp/image -c . | podman import --change 'CMD ["/bin/sleep", "2147483647"]' - localhost/busybox:1 && image localhost/busybox:1 &&
		build plugin localhost/fermata-kubernetes:$VERSION /fermata/build/kubernetes-dev &&
		build tools localhost/fermata-tools:$VERSION /machine/bin
}

start_runtime() {
	start containerd containerd
	wait_until ctr version || logs containerd
}
start_control_plane() {
	start etcd etcd --data-dir /var/lib/etcd/data --unsafe-no-fsync
	# Without roles: the plugin needs none, and they would take the API server a minute. Privileged containers are allowed, as with kubeadm.
	start kube-apiserver kube-apiserver --allow-privileged --etcd-servers=http://127.0.0.1:2379 --advertise-address=$ADDRESS --cert-dir=/etc/kubernetes \
		--token-auth-file=/etc/kubernetes/tokens --authorization-mode=AlwaysAllow --service-cluster-ip-range=10.96.0.0/16 \
		--service-account-issuer=https://kubernetes --service-account-key-file=/etc/kubernetes/accounts.pub \
		--service-account-signing-key-file=/etc/kubernetes/accounts.key
	wait_until kubectl get --raw /readyz || logs etcd kube-apiserver || return
	start kube-scheduler kube-scheduler --kubeconfig=$KUBECONFIG --leader-elect=false
	start kube-controller-manager kube-controller-manager --kubeconfig=$KUBECONFIG --leader-elect=false \
		--controllers=daemonset,nodelifecycle,serviceaccount,podgc --node-monitor-grace-period=10m
	kubectl version --short
}
start_kubelet() {
	start kubelet kubelet --config=/etc/kubernetes/kubelet --kubeconfig=$KUBECONFIG --hostname-override=$NODE --node-ip=$ADDRESS \
		--container-runtime=remote --container-runtime-endpoint=unix:///run/containerd/containerd.sock
	KUBELET=$!
}
stop_kubelet() { kill "$KUBELET"; wait "$KUBELET"; true; }
node() { kubectl get node $NODE --output "jsonpath={$1}"; }
node_is_ready() { node '.status.conditions[?(@.type=="Ready")]'; node '.status.conditions[?(@.type=="Ready")].status' | grep -qx True && ! node .spec.taints | grep .; }

# Runs a pod named $1 from the image $2 with $3 shares (0: none); the other arguments are its command.
pod() {
	name=$1 image=$2 shares=$3
	shift 3
	limits=
	[ "$shares" = 0 ] || limits=", \"resources\": {\"limits\": {\"fermata.dev/share\": \"$shares\"}}"
	arguments=$(for word in "$@"; do printf '%s\n' "$word"; done | python3 -c 'import json, sys; print(json.dumps(sys.stdin.read().splitlines()))')
	kubectl apply --filename - <<-END
		{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "$name"},
		 "spec": {"restartPolicy": "Never", "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 1,
		  "containers": [{"name": "it", "image": "$image", "imagePullPolicy": "Never", "args": $arguments$limits}]}}
	END
}
of_pod() { kubectl get pod "$1" --output "jsonpath={$2}"; }
phase_is() { [ "$(of_pod "$1" .status.phase)" = "$2" ]; }
becomes() { wait_until phase_is "$1" "$2" && return; kubectl describe pod "$1"; logs kubelet; }
delete() { kubectl delete pod --grace-period=1 "$@"; }
uid_of() { of_pod "$1" .metadata.uid; }
cgroup_of() { find /sys/fs/cgroup/kubepods -type d -name "pod$(uid_of "$1")"; }
# A figure of the pod's group on the card.
figure() { fermatactl --json group 0 "$(cgroup_of "$1")" | sed "s/.*\"$2\":\([0-9a-z]*\)[,}].*/\1/"; }
