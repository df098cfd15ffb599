# Sourced by `rust` and `clients/all`. Both have several child processes at once, which `running` lists.

# Waits until one child has ended. Sets `ended` to its process and `status` to its exit status. First looks for children
# that a signal has already ended, because `wait -n` does not return these.
one_ends() {
  local process
  ended=''
  until [ -n "${ended:-}" ]; do
    for process in "${!running[@]}"; do kill -0 "$process" || ended=$process; done 2>/dev/null
    if [ -n "${ended:-}" ]; then wait "$ended"; else wait -n -p ended "${!running[@]}"; fi
    status=$?
  done
}
