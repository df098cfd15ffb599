.PHONY: test soak check format lint licences

# Runs everything: installs what it needs, checks formatting, runs real clients and the Rust tests with lints. Ends with
# `N passed, N failed`.
test:
	@tests/all

# Runs for long what `make test` runs a few times: kills, damage, random schedules.
soak:
	@tests/soak

# Runs the checks that need no broker: formatting, lints, licences and sources of the dependencies.
check: format lint licences

format:
	cargo fmt --all --check

lint:
	cargo clippy --workspace --all-targets -- -D warnings

licences:
	command -v cargo-deny >/dev/null || cargo install --locked cargo-deny
	cargo deny --log-level error check licenses bans sources
