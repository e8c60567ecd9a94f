# The development commands of klad. Begin with `make run` and `make test`; each installs what is missing first.
#
# The recipes call scripts in tools/. Plain cargo works as well, after `. tools/env.sh` (docs/building.md).

.PHONY: help run bench cluster test build lint measure deny docs dist install uninstall

help:  ## print these lines
	@awk -F ':.*## +' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile

run:  ## build klad and serve ./data on 127.0.0.1:8080; more options: make run ARGS="--memory 1GiB"
	@tools/setup.sh
	@exec tools/run.sh $(ARGS)

bench:  ## load a server and report what was measured: make bench ARGS="http://127.0.0.1:8080 --workload put --rate 5k/s"
	@tools/setup.sh
	@exec tools/bench.sh $(ARGS)

cluster:  ## run three Cassandra nodes and three klads on this machine, until Ctrl-C
	@tools/setup.sh
	@tools/setup.sh cluster
	@exec tools/cluster.sh

test:  ## run all checks and all tests
	@tools/setup.sh test
	@exec tools/test.sh

build:  ## build klad without running it
	@tools/setup.sh
	@exec tools/build.sh

lint:  ## check the formatting and run clippy
	@tools/setup.sh
	@exec tools/test.sh format clippy clippy-measure

measure:  ## run the measurements of a release: times, memory, the load tester, restarts, stops, profiles, overload
	@tools/setup.sh
	@exec tools/measure.sh $(ARGS)

docs:  ## generate parts of docs/ and deploy/ from the definitions of the options
	@tools/setup.sh
	@exec tools/docs.sh

deny:  ## check licences and sources of all dependencies
	@tools/setup.sh
	@exec tools/deny.sh

dist:  ## build klad and make packages in dist/: a tarball, and a .deb if dpkg is present
	@tools/setup.sh dist
	@exec tools/dist.sh

install:  ## install the built klad into PREFIX (/usr/local) below DESTDIR
	@PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" exec tools/install.sh install

uninstall:  ## remove klad; configuration and data stay
	@PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" exec tools/install.sh uninstall
