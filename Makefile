# Targets for people and CI. `make help` lists them. The work is in scripts/run.sh and in cargo.

HOSTS ?= sim
MUSL  := x86_64-unknown-linux-musl
CARGO := $(if $(shell command -v cargo),cargo,$(HOME)/.cargo/bin/cargo)

.DEFAULT_GOAL := help
.PHONY: help demo test test-model model simulate mutants fuzz test-real flaky soak check docs bench generate build agent-static images test-images test-arm64 advisories release version

help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## Watch a rollout in a live table, on simulated hosts. HOSTS=real: on real ones, as root.
	@scripts/run.sh demo $(HOSTS)

test: ## Run everything that CI runs: checks, unit tests, and the scenarios that fit. STRICT=1 fails on a flaky one.
	@scripts/run.sh test

test-model: ## Check the model: the shipped decisions in small worlds, and each deliberate bug.
	@scripts/run.sh test-model

model: ## Check the model with more faults in one history. SECONDS_EACH=1800, WORLD=name.
	@scripts/run.sh model

simulate: ## Run random rollouts of the model in large worlds. SEED=1 replays, ROLLOUTS=10000, HUGE=65000 adds one of that many nodes.
	@scripts/run.sh simulate

mutants: ## Change each decision, and print the changes that no unit test notices. Hours. PART=0/16 does a sixteenth.
	@scripts/run.sh mutants

fuzz: ## Run libFuzzer on each reader of foreign data. SECONDS_EACH=60.
	@scripts/run.sh fuzz

test-real: ## Run every scenario on real hosts (root, x86_64), and the simulated rollouts by rpm-ostree.
	@scripts/run.sh test-real

flaky: ## Run scenarios again and again on a busy machine, and count how often each failed. TEST=name, TIMES=20.
	@scripts/run.sh flaky

soak: ## Run rollouts while everything around them fails. SEED=n replays or continues, FROM=n, ROLLOUTS=200, BUG=name or all, LIAR=0 or 1, LIES=names.
	@scripts/run.sh soak

check: ## Check format, lints, generated files, dependencies and licences.
	@scripts/run.sh check

docs: ## Build the documentation as a book in target/book, and check its links.
	@scripts/run.sh docs

bench: ## Measure, and print JSON lines with the last landing's figures. BERTH_BENCH_ONLY=name,name selects. RECORD=1 keeps the new ones.
	@scripts/bench.sh

generate: ## Write the generated files.
	@$(CARGO) run --quiet -p berth-api --example crdgen > manifests/base/crds.yaml.new
	@mv manifests/base/crds.yaml.new manifests/base/crds.yaml
	@$(CARGO) run --quiet -p berth-api --example apidocs > docs/api.md.new
	@mv docs/api.md.new docs/api.md
	@scripts/charts.sh

build: ## Build the three programs for this machine.
	@$(CARGO) build --release

agent-static: ## Build the agent as it is shipped: static, for musl.
	@bash -c '. scripts/need.sh && need musl-gcc=musl-tools && need_rust'
	@$(CARGO) build --release --target $(MUSL) -p berth-agent

images: ## Make the images of agent and controller, as OCI archives in dist/. ARCHITECTURES="amd64 arm64".
	@scripts/release.sh images

test-images: ## Make the images in two directories, and compare their bytes. Many minutes.
	@scripts/release.sh test-images

test-arm64: ## Run the unit tests on an emulated arm64. Many minutes.
	@scripts/release.sh test-arm64

advisories: ## Compare the dependencies with the RustSec advisories of today.
	@scripts/run.sh advisories

version: ## Write another version into every file that names it. VERSION=x.
	@scripts/release.sh version "$(VERSION)"

release: ## Make all files of a release in dist/, from a clean tree of that version. VERSION=x.
	@scripts/release.sh release "$(VERSION)"
