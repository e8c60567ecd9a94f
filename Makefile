# The commands of klad. `make run` and `make test` are all that a newcomer needs; each does its own set-up.
#
# Recipes are one line; what they do is in tools/. Plain cargo works as well, after `. tools/env.sh` (docs/building.md).

.PHONY: help run bench test build lint measure deny docs dist install uninstall

help:  ## these lines
	@awk -F ':.*## +' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile

run:  ## build, and serve ./data on 127.0.0.1:8080; more options: make run ARGS="--memory 1GiB"
	@tools/setup.sh
	@exec tools/run.sh $(ARGS)

bench:  ## load a server and judge it: make bench ARGS="http://127.0.0.1:8080 --workload put --rate 5k/s"
	@tools/setup.sh
	@exec tools/bench.sh $(ARGS)

test:  ## all checks and all tests
	@tools/setup.sh test
	@exec tools/test.sh

build:  ## the program, without running it
	@tools/setup.sh
	@exec tools/build.sh

lint:  ## formatting and clippy
	@tools/setup.sh
	@exec tools/test.sh format clippy

measure:  ## what a release measures: truth of the load tester, memory, restarts, stops, cost of profiles, overload
	@tools/setup.sh
	@exec tools/measure.sh $(ARGS)

docs:  ## what is generated in docs/ and deploy/, from the definitions of the options
	@tools/setup.sh
	@exec tools/docs.sh

deny:  ## licences, sources and unwanted crates of all dependencies
	@tools/setup.sh
	@exec tools/deny.sh

dist:  ## build, and make packages in dist/: a tarball, and a .deb where dpkg is
	@tools/setup.sh dist
	@exec tools/dist.sh

install:  ## what was built, into PREFIX (/usr/local) below DESTDIR
	@PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" exec tools/install.sh install

uninstall:  ## takes it out again; configuration and data stay
	@PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" exec tools/install.sh uninstall
