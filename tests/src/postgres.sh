# Runs a PostgreSQL for tests with the programs in $1. Its directory is $2, and it listens on a Unix socket there and on
# port $3 of 127.0.0.1. Each line of standard input is an order and is answered by one line. At the end the script
# removes all its files, even if the parent was killed.
set -u
bin=$1 dir=$2 port=$3
trap '' INT TERM HUP PIPE
as_who() { # PostgreSQL refuses to run as root.
  if [ "$(id -u)" != 0 ]; then "$@"; else setpriv --reuid="$user" --regid="$(id -g "$user")" --clear-groups -- "$@"; fi
}
user=postgres
id "$user" >/dev/null 2>&1 || user=nobody
start() {
  as_who "$bin/pg_ctl" -D "$dir/data" -l "$dir/log" -w -t 60 start >/dev/null 2>&1 </dev/null
}
[ "$(id -u)" != 0 ] || chown "$user" "$dir"
as_who "$bin/initdb" -D "$dir/data" -N -U postgres --auth=trust --no-locale -E UTF8 >"$dir/initdb" 2>&1 || { cat "$dir/initdb"; rm -rf "$dir"; exit 1; }
{
  echo "unix_socket_directories='$dir'"
  echo "listen_addresses='127.0.0.1'"
  echo "port=$port"
  echo "fsync=off"
  echo "shared_buffers=16MB"
  echo "max_connections=200"
  echo "log_min_messages=warning"
  [ ! -e "$dir/server.pem" ] || echo "ssl=on
ssl_cert_file='$dir/server.pem'
ssl_key_file='$dir/server.key'"
} >>"$dir/data/postgresql.conf"
[ ! -e "$dir/server.key" ] || { chmod 600 "$dir/server.key"; [ "$(id -u)" != 0 ] || chown "$user" "$dir/server.key"; }
{
  echo "local all all trust"
  echo "hostssl all encrypted 127.0.0.1/32 scram-sha-256"
  echo "host all secretive 127.0.0.1/32 scram-sha-256"
  echo "host all encrypted 127.0.0.1/32 reject"
  echo "host all all 127.0.0.1/32 trust"
} >"$dir/data/pg_hba.conf"
stop() {
  signal CONT
  as_who "$bin/pg_ctl" -D "$dir/data" -m immediate -w stop >/dev/null 2>&1 </dev/null
}
signal() { # Sends the signal to the server and its present children.
  local pid
  pid=$(head -n 1 "$dir/data/postmaster.pid" 2>/dev/null) || return
  kill -s "$1" "$pid"
  # shellcheck disable=SC2046
  kill -s "$1" $(cat "/proc/$pid/task/$pid/children") 2>/dev/null
}
if start; then echo started; else echo failed; cat "$dir/log"; fi
while read -r what; do
  case $what in
    stop) stop; echo stopped ;;
    start) start; echo started ;;
    freeze) signal STOP; echo frozen ;;
    thaw) signal CONT; echo thawed ;;
    copy) cp -a "$dir/data" "$dir/copy"; echo copied ;;
    swap) mv "$dir/data" "$dir/other"; mv "$dir/copy" "$dir/data"; mv "$dir/other" "$dir/copy"; echo swapped ;;
  esac
done
stop
rm -rf "$dir"
