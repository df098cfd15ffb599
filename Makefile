.PHONY: test check

# Everything: installs what it needs, formatting, lints, Rust tests, real clients. Ends with `N passed, N failed`.
test:
	@tests/all

# What needs no broker and no network.
check:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
