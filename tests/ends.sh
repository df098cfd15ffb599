# Sourced by `rust` and `clients/all`, which have several child processes at once, listed in `running`.

# Waits for the end of one child: `ended` is its process, `status` its exit status. `wait -n` does not return a child
# that a signal has already ended.
one_ends() {
  local process
  ended=''
  until [ -n "${ended:-}" ]; do
    for process in "${!running[@]}"; do kill -0 "$process" || ended=$process; done 2>/dev/null
    if [ -n "${ended:-}" ]; then wait "$ended"; else wait -n -p ended "${!running[@]}"; fi
    status=$?
  done
}
