# SPDX-License-Identifier: GPL-2.0
# `make help` lists the targets; docs/building.md explains them.

CHECKS := check check-all check-debug

# Of `make check NAME...` all but the first are names of steps.
ifneq ($(filter $(CHECKS),$(firstword $(MAKECMDGOALS))),)
NAMES := $(sort $(filter-out $(CHECKS),$(MAKECMDGOALS)))

.PHONY: $(NAMES)
$(NAMES) .DEFAULT:
	@:
else

# The kernel to build for and install to: the running one, or another tree.
KRELEASE ?= $(shell uname -r)
KDIR ?= /lib/modules/$(KRELEASE)/build
MO := $(CURDIR)/build/module-$(notdir $(patsubst %/build,%,$(KDIR)))

# The kernel of the virtual machine (make vm), more options for its boot, and a command to run instead of a shell.
KERNEL ?= 7.2
BOOT ?=
RUN ?=

.PHONY: modules modules_install tools libraries install uninstall install-dkms deb clean distclean help vm demo demo-docs metrics-docs fuzz mutate sim bench bench-docs instructions bench-sched bench-latency bench-queue travel epoch guestdemo slurm-demo criu-plugin kubernetes cluster

modules:
ifneq ($(wildcard $(KDIR)/rust/libkernel.rmeta),)
	$(MAKE) -C $(KDIR) M=$(CURDIR) MO=$(MO) modules
	@echo "built $(MO:$(CURDIR)/%=%)/fermata.ko"
else ifeq ($(origin KDIR),file)
	@# A stock Debian kernel: its headers lack the Rust metadata, so vm/ builds that from the kernel's linux-source.
	@vm/build-module $(KRELEASE)
else
	@echo "$(KDIR) is no kernel build tree with Rust metadata (rust/libkernel.rmeta)" >&2; exit 1
endif

# Install what `modules` built, below INSTALL_MOD_PATH if given, and run depmod.
INSTALL_DIR = $(INSTALL_MOD_PATH)/lib/modules/$(KRELEASE)/updates
modules_install:
ifneq ($(wildcard $(KDIR)/rust/libkernel.rmeta),)
	$(MAKE) -C $(KDIR) M=$(CURDIR) MO=$(MO) modules_install
else
	@test -e build/module-$(KRELEASE)/fermata.ko || { echo "run make first" >&2; exit 1; }
	install -D -m 644 build/module-$(KRELEASE)/fermata.ko $(INSTALL_DIR)/fermata.ko
	@if command -v depmod >/dev/null; then depmod $(if $(INSTALL_MOD_PATH),-b $(INSTALL_MOD_PATH)) $(KRELEASE); \
	else echo "warning: no depmod in the path (package kmod): run it for $(KRELEASE)" >&2; fi
endif

# DESTDIR and prefix are honoured (see packaging/Makefile).
tools libraries install uninstall install-dkms:
	@$(MAKE) --no-print-directory -C packaging $@

deb:
	@packaging/deb

clean:
	rm -rf build

# Also remove what other checkouts share: the build root and the kernels. `make demo` makes them again.
distclean: clean
	vm/clean-cache

vm:
	@vm/boot --kernel $(KERNEL) --iommu intel --card profile=irq --debian --develop $(BOOT) $(if $(RUN),-- $(RUN),--shell)

demo:
	@vm/run demo

# Copy the picture of a report, with a licence, to docs/.
DOC_PICTURE = sed '1a <!-- SPDX-License-Identifier: GPL-2.0 -->' build/reports/$(1).svg >docs/$(2).svg

demo-docs:
	@test -e build/reports/demo-turns.svg || { echo "run make demo first" >&2; exit 1; }
	@$(call DOC_PICTURE,demo-turns,timeline)

METRICS := build/vm/metrics/files/dashboard.json
metrics-docs:
	@test -e $(METRICS) || { echo "run make check-all metrics first" >&2; exit 1; }
	@mkdir -p build/reports
	@vm/enter python3 -m fermatavm.cargo 'the program that draws (a minute, once)' run --locked --package fermata-picture --example dashboard -- packaging/grafana/fermata.json $(METRICS) build/reports/metrics.svg
	@$(call DOC_PICTURE,metrics,metrics)

# TIME: seconds.
TIME ?= 600
fuzz:
	@vm/run fuzz --keep --seed $$(date +%s) --time $(TIME)

mutate:
	@selftests/mutate

# SIM: other arguments (docs/simulator.md), e.g. SIM=all, or SIM='compare --workloads C --loads 80'.
SIM ?= overview
sim:
	@vm/enter python3 -m fermatavm.cargo 'the simulator (80 s, once)' run --release --locked --package fermata-sim -- $(SIM)

# BENCH: arguments of `fermata-bench run` (docs/benchmarks.md), e.g. BENCH=--quick.
bench:
	@vm/run bench run $(BENCH)

bench-docs:
	@test -e build/reports/bench.json || { echo "run make bench first" >&2; exit 1; }
	@vm/enter build/guest-release/bin/fermata-bench table build/reports/bench.json --into docs/bench-results.md
	@$(call DOC_PICTURE,bench-gap,bench-gap)
	@$(call DOC_PICTURE,bench-arrival,bench-arrival)

instructions:
	@vm/run instructions
	@vm/run instructions module
	@vm/run instructions module --profile relay

bench-sched:
	@vm/enter python3 -m fermatavm.cargo 'the benchmark (two minutes, once)' bench --locked --package fermata-sched-bench

# LATENCY: arguments of `fermata-bench latency` (docs/benchmarks.md), e.g. LATENCY='--rounds 1'.
bench-latency:
	@vm/run bench latency $(LATENCY)

# QUEUE: arguments of `fermata-bench queue`.
bench-queue:
	@vm/run bench queue $(QUEUE)

travel:
	@vm/run travel

epoch:
	@vm/run epoch

guestdemo:
	@vm/run guestdemo

slurm-demo: criu-plugin
	@vm/run slurm demo

# $(call keep,FROM,TO,OPTIONS of install): make TO a copy of FROM, replaced atomically if FROM is newer, since concurrent checks keep the same files.
keep = flock build/.keep.lock sh -ec '[ "$(2)" -nt "$(1)" ] || { install -D $(3) "$(1)" "$(2).new"; mv "$(2).new" "$(2)"; }'

# CRIU loads the plugin, so unlike the programs the plugin is not static.
DYNAMIC := vm/enter env -u CARGO_BUILD_TARGET -u CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS cargo
criu-plugin:
	@echo 'fermata: building the plugin for CRIU (two minutes, once)' >&2
	@$(DYNAMIC) rustc --release --locked --package fermata-criu --lib --crate-type cdylib
	@$(DYNAMIC) build --release --locked --package fermata-criu --bins
	@$(call keep,build/cargo/release/libfermata_criu.so,build/criu/fermata.so,-m 644)
	@$(call keep,build/cargo/release/fermata-criu-mixture,build/criu/mixture)

# The program of tools/kubernetes, and the test that acts as the kubelet; with PROFILE=dev they are not optimised, and in build/kubernetes-dev.
KUBERNETES := build/cargo-kubernetes/x86_64-unknown-linux-gnu/$(if $(filter dev,$(PROFILE)),debug,release)
KEPT := build/kubernetes$(if $(filter dev,$(PROFILE)),-dev)
kubernetes:
	@echo 'fermata: building the programs for Kubernetes (six minutes, once)' >&2
	@vm/enter python3 -m fermatavm.kubernetes build --profile $(or $(PROFILE),release) --locked --bins --examples
	@$(call keep,$(KUBERNETES)/fermata-kubernetes,$(KEPT)/fermata-kubernetes,-s)
	@$(call keep,$(KUBERNETES)/examples/kubelet,$(KEPT)/kubelet,-s)

cluster:
	@$(MAKE) --no-print-directory kubernetes PROFILE=dev
	@vm/run cluster

help:
	@echo 'Against the running kernel, or the one that KRELEASE= or KDIR= names:'
	@echo '  make                   build fermata.ko'
	@echo '  make modules_install   install it (INSTALL_MOD_PATH= is honoured)'
	@echo '  make tools             build the programs that make install installs (in the build root, static)'
	@echo '  make libraries         build the C library, the plugin for CRIU and the card that loads libraries, which make install then installs,'
	@echo '                         too, and the wheel for Python'
	@echo '  make install           programs, header, udev rule, group, manual pages, documentation (DESTDIR=, prefix=; also make uninstall)'
	@echo '  make install-dkms      the source where DKMS finds it; then dkms add, build and install'
	@echo '  make clean             remove build/'
	@echo '  make distclean         remove build/ and the cache (FERMATA_CACHE) that all checkouts share'
	@echo 'In a virtual machine with the emulated card; nothing is needed but what the README names:'
	@echo '  make demo              tenants share a card: live view, then a table; build/reports/demo.json, demo*.svg, demo-trace.json;'
	@echo '                         make demo-docs puts the picture of some turns into docs/'
	@echo '  make travel            jobs go to a file and back, to another card, to another machine; build/reports/travel.json'
	@echo '  make epoch             the first figure of EPOCH, with its costs, as a picture: build/reports/epoch.svg'
	@echo '  make guestdemo         a virtual machine in the machine has a share of the card (5 minutes)'
	@echo '  make slurm-demo        six jobs of two users on two nodes of Slurm, one of which is drained (3 minutes)'
	@echo '  make criu-plugin       the plugin for CRIU and the program that tests dump with it; build/criu'
	@echo '  make kubernetes        device plugin and DRA driver for Kubernetes, build/kubernetes/fermata-kubernetes (docs/deploy/kubernetes.md)'
	@echo '  make cluster           the device plugin with the API server, the scheduler and the kubelet of Kubernetes 1.20.2, which are built first'
	@echo '                         (18 minutes) from Debian'"'"'s source, and kept'
	@echo '  make check             everything that a change can break, tried once (docs/testing.md has the times); the last line counts'
	@echo '  make check-all         all checks of make check, and those that take longer (about an hour)'
	@echo '  make check-debug       the selftests on a kernel that looks for mistakes; built first (about 15 minutes), and kept'
	@echo '  make check NAME...     the steps of make check of these names (vm/check --list); also with check-all and check-debug'
	@echo '  make fuzz TIME=600     random calls on that kernel for so many seconds, led by what they reach; kept in tools/fuzz/corpus.txt'
	@echo '  make mutate            take fixes out of the module, one at a time: a selftest must fail (hours; selftests/mutate NAME: some of them)'
	@echo '  make deb               Debian packages of module (DKMS), tools, libraries and header; build/deb'
	@echo '  make vm                a shell in the machine, a Debian system with a card, a compiler and the libraries for C and Python'
	@echo '                         (KERNEL=7.3, BOOT="--iommu none", RUN="debian python3 FILE": a command instead of the shell)'
	@echo '  make sim               the scheduler over virtual time: four modes on each workload; tables, plots, build/reports/sim.json'
	@echo '                         (SIM=all: ten modes, a trace, gangs, fleets, placement)'
	@echo '  make bench             with and without relay, beside a daemon on vfio-pci, no preemption, two bounds (BENCH=--quick: a short run; docs/benchmarks.md has the times);'
	@echo '                         tables, plots, build/reports/bench.json; make bench-docs puts them into docs/'
	@echo '  make instructions      instructions of a switch and of a call; build/reports/{module-,}instructions.json'
	@echo '  make bench-sched       what a decision costs with 2 to 65,536 contexts; build/reports/bench-sched.json'
	@echo '  make bench-latency     how soon latency-critical work has a slot with 2, 64 and 1,000 contexts; build/reports/latency.json'
	@echo '  make bench-queue       jobs posted to a queue, and started by a call each: system calls, times; build/reports/queue.json'
	@echo '  make help              this list'
endif

.PHONY: $(CHECKS)
$(CHECKS):
	@vm/check $(patsubst check-%,--%,$(filter-out check,$@)) $(NAMES:%='%')
