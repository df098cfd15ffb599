# Sourced by fullbore.sh. Runs `fullbore produce` and `fullbore consume` together with kcat, and with Java if Kafka's
# jars are in $JARS.

pipe() { local action=$1; shift; "$FULLBORE_BIN" "$action" --bootstrap-server "$bootstrap" "${secured[@]}" "$@"; }
read_kcat() { kcat -q -b "$bootstrap" -C -t "$topic-$1" -p 0 -e "${@:2}"; }

pipe_in() { # with the same input and flags, our producer and kcat write the same records
  topics create --topic "$topic-in" --partitions 1
  topics create --topic "$topic-in-kcat" --partitions 1
  printf 'k:v\n:no key\ntombstone:\nplain\nä:b:c\n' >"$work/in"
  local flags=(-K : -Z -H h=1 -H h=2 -H null -H empty= -z lz4)
  pipe produce -t "$topic-in" "${flags[@]}" <"$work/in"
  kcat -q -b "$bootstrap" -P -t "$topic-in-kcat" "${flags[@]}" <"$work/in"
  local format='%o|%K|%k|%S|%s|%h\n'
  same "$(read_kcat in -o beginning -f "$format")" "$(read_kcat in-kcat -o beginning -f "$format")"
  head -c 100000 /dev/urandom >"$work/random"
  pipe produce -t "$topic-in" --whole "$work/random"
  read_kcat in -o -1 -f %s | cmp - "$work/random"
}

pipe_out() { # prints the same bytes as kcat with the same flags, but with -Z kcat prints an empty value as null
  topics create --topic "$topic-out" --partitions 1
  local codec stamps flags
  for codec in none gzip snappy lz4 zstd; do
    printf 'k:v %s\n:\n\xff\x00\xfe:\x01\n:no key\nempty:\n' $codec | kcat -q -b "$bootstrap" -P -t "$topic-out" -p 0 -K : -H a=1 -H n -z $codec
    printf 'k:\n' | kcat -q -b "$bootstrap" -P -t "$topic-out" -p 0 -K : -Z -z $codec
  done
  stamps=($(read_kcat out -o beginning -f '%T\n'))
  while read -r -a flags; do
    [ "${flags[1]}" != STAMP ] || flags[1]=s@${stamps[12]}
    [ "${flags[3]:-}" != STAMP ] || flags[3]=e@${stamps[20]}
    read_kcat out "${flags[@]}" >"$work/kcats"
    pipe consume -t "$topic-out" -p 0 -e "${flags[@]}" >"$work/ours"
    cmp "$work/kcats" "$work/ours" || { echo "${flags[*]}"; return 1; }
  done <<'FLAGS'
-o beginning -f %t|%p|%o|%T|%k|%K|%s|%S|%h\n
-o beginning -f %R%s\x41\t
-o 7 -f %o;
-o -3 -K : -D |
-o STAMP -o STAMP -f %o\n
FLAGS
}

pipe_json() { # prints a topic as JSON, and produces this JSON to another topic, which must get the same records
  topics create --topic "$topic-json" --partitions 1
  pipe consume -t "$topic-out" -e --json | pipe produce -t "$topic-json" --json
  local format='%o|%T|%K|%k|%S|%s|%h\n'
  same "$(read_kcat json -o beginning -f "$format" | od -c)" "$(read_kcat out -o beginning -f "$format" | od -c)"
}

# shared GROUP PROTOCOL COMMAND...: our consumer and another client share a topic as members of a group. Each record is
# read once. After the other member is killed, ours reads every record.
shared() {
  local protocol=$2 of=$topic-$1; shift 2
  topics create --topic "$of" --partitions 4
  : >"$work/ours" >"$work/other"
  # Both programs are started directly. In a function, `$!` would be a subshell, and the signals below would not reach
  # the program.
  "$FULLBORE_BIN" consume --bootstrap-server "$bootstrap" "${secured[@]}" -t "$of" --group "$of" --group-protocol "$protocol" \
    --from-beginning -f '%s\n' -X session.timeout.ms=6000 >"$work/ours" 2>"$work/ours-log" & ours=$!
  "$@" >"$work/other" 2>"$work/other-log" & other=$!
  trap 'kill -9 "$ours" "$other" 2>"$work/killed"' EXIT
  two() { [ "$(groups describe --members --group "$of" 2>"$work/none-yet" | awk '$NF == 2' | wc -l)" = 2 ]; }
  eventually two || eventually two # a JVM on a busy machine is slow
  seq 1000 | pipe produce -t "$of" -X batch.size=0
  whole() { same "$(sort -n -u "$work/ours" "$work/other")" "$(seq "$1")"; }
  eventually whole 1000
  [ -s "$work/ours" ] # two commands, because -e would ignore a failure of the first in `a && b`
  [ -s "$work/other" ]
  kill -9 $other
  seq 1001 1100 | pipe produce -t "$of" -X batch.size=0
  local until=$((SECONDS + 90)) # a session may last up to 45 s
  until whole 1100 >/dev/null || [ $SECONDS -gt $until ]; do sleep 0.2; done
  whole 1100
  kill -TERM $ours
  wait $ours
  trap - EXIT
  same "$(pipe consume -t "$of" -G "$of" --group-protocol "$protocol" -e)" ''
}

with_kcat() {
  shared with-kcat classic "$(type -P kcat)" "${kcat_tls[@]}" -q -u -b "$bootstrap" -G "$topic-with-kcat" -X auto.offset.reset=earliest -X session.timeout.ms=6000 \
    -X topic.metadata.refresh.interval.ms=500 -f '%s\n' "$topic-with-kcat"
}

with_java() { # with_java PROTOCOL
  local config="$work/java-$1.properties"
  printf 'auto.offset.reset=earliest\ngroup.protocol=%s\n' "$1" | cat - ${TLS:+"$TLS"} >"$config"
  [ "$1" != classic ] || echo session.timeout.ms=6000 >>"$config"
  shared "with-java-$1" "$1" "${jvm[@]}" org.apache.kafka.tools.consumer.ConsoleConsumer \
    --bootstrap-server "$bootstrap" --topic "$topic-with-java-$1" --group "$topic-with-java-$1" --command-config "$config"
}

check 'produce equals kcat -P' pipe_in
check 'consume equals kcat -C' pipe_out
check 'consume --json | produce --json' pipe_json
check 'consume --group with kcat' with_kcat
if [ -n "${JARS:-}" ]; then
  check 'consume --group with Java, classic' with_java classic
  check 'consume --group with Java, KIP-848' with_java consumer
fi
