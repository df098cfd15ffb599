.PHONY: test soak check format lint

# Everything: installs what it needs, formatting, real clients, Rust tests with lints. Ends with `N passed, N failed`.
test:
	@tests/all

# What `make test` does a few times, many times: kills, damage, random schedules.
soak:
	@tests/soak

# What needs no broker and no network.
check: format lint

format:
	cargo fmt --all --check

lint:
	cargo clippy --workspace --all-targets -- -D warnings
