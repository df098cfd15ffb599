.PHONY: test soak check format lint

# Runs everything: installs what it needs, checks formatting, runs real clients and the Rust tests with lints. Ends with
# `N passed, N failed`.
test:
	@tests/all

# Runs for long what `make test` runs a few times: kills, damage, random schedules.
soak:
	@tests/soak

# Runs the checks that need no broker and no network.
check: format lint

format:
	cargo fmt --all --check

lint:
	cargo clippy --workspace --all-targets -- -D warnings
