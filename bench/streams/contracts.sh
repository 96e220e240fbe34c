# What each contract saves a program that wants the same promise (DFSCQ §7.4). Sourced by bench/streams.sh.
# shellcheck shell=bash disable=SC2034,SC2154
#
#   mail   deliveries as qmail makes them; what was acknowledged stays. ext4: fsync of the mail, then of the box;
#          metadata-prefix: fdatasync of the mail, then fsync of the box; ordered: fsync of the box; sync: none
#   tpcc   TPC-C's mix of transactions on SQLite; what was acknowledged stays. ext4: synchronous=EXTRA; metadata-prefix: FULL;
#          ordered: NORMAL, which leaves out the directory and the second fsync of the journal; sync: OFF
#   build  git clone of a small C project, and make: no program calls fsync

tpcc_mix() {
  awk -v n="$1" 'function random(k) { state = (state * 16807) % 2147483647; return state % k }
    BEGIN {
      state = 11
      for (t = 1; t <= n; t++) {
        kind = random(100); d = random(10); c = random(300)
        print "BEGIN;"
        if (kind < 45) {
          printf "UPDATE district SET next = next + 1 WHERE id = %d; INSERT INTO orders VALUES (%d, %d, %d, NULL);\n", d, t, d, c
          lines = 5 + random(11)
          for (l = 0; l < lines; l++) {
            i = random(1000); q = 1 + random(10)
            printf "UPDATE stock SET quantity = CASE WHEN quantity > %d + 10 THEN quantity - %d ELSE quantity - %d + 91 END WHERE item = %d; INSERT INTO line VALUES (%d, %d, %d, %d, hex(zeroblob(12)));\n", q, q, q, i, t, l, i, q
          }
        } else if (kind < 88)
          printf "UPDATE district SET ytd = ytd + 7 WHERE id = %d; UPDATE customer SET balance = balance - 7, payments = payments + 1 WHERE id = %d; INSERT INTO history VALUES (%d, %d, 7, hex(zeroblob(12)));\n", d, c, t, c
        else if (kind < 92)
          printf "SELECT count(*) FROM line WHERE number = (SELECT max(number) FROM orders WHERE customer = %d);\n", c
        else if (kind < 96)
          printf "UPDATE orders SET carrier = %d WHERE number = (SELECT min(number) FROM orders WHERE carrier IS NULL AND district = %d);\n", random(10), d
        else
          printf "SELECT count(*) FROM stock WHERE quantity < 15 AND item IN (SELECT item FROM line WHERE number > %d - 20);\n", t
        print "COMMIT;"
      }
    }'
}
tpcc_schema() {
  sqlite3 "$1" "CREATE TABLE district (id INTEGER PRIMARY KEY, next INTEGER, ytd INTEGER);
    CREATE TABLE customer (id INTEGER PRIMARY KEY, balance INTEGER, payments INTEGER);
    CREATE TABLE stock (item INTEGER PRIMARY KEY, quantity INTEGER);
    CREATE TABLE orders (number INTEGER PRIMARY KEY, district INTEGER, customer INTEGER, carrier INTEGER);
    CREATE INDEX orders_of ON orders (customer);
    CREATE TABLE line (number INTEGER, place INTEGER, item INTEGER, quantity INTEGER, text TEXT, PRIMARY KEY (number, place)) WITHOUT ROWID;
    CREATE TABLE history (number INTEGER, customer INTEGER, amount INTEGER, text TEXT);
    WITH RECURSIVE c (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM c WHERE i < 999) INSERT INTO stock SELECT i, 50 FROM c;
    INSERT INTO district SELECT item, 0, 0 FROM stock WHERE item < 10;
    INSERT INTO customer SELECT item, 0, 0 FROM stock WHERE item < 300"
}

make_project() {
  local dir=$MEMORY_WORK/project.src k
  mkdir -p "$dir"
  for ((k = 0; k < 60; k++)); do
    awk -v k="$k" 'BEGIN { for (f = 0; f < 40; f++) printf "int f%d_%d(int x) { return x * %d + %d; }\n", k, f, f + 1, k }' >"$dir/part-$k.c"
  done
  { for ((k = 0; k < 60; k++)); do echo "int f${k}_0(int);"; done; echo "int main(void) { return 0"; for ((k = 0; k < 60; k++)); do echo "+ 0 * f${k}_0(1)"; done; echo "; }"; } >"$dir/main.c"
  # shellcheck disable=SC2016 # for make
  printf 'OBJECTS = $(patsubst %%.c,%%.o,$(wildcard *.c))\nprogram: $(OBJECTS)\n\tcc -o $@ $(OBJECTS)\n%%.o: %%.c\n\tcc -O0 -c -o $@ $<\n' >"$dir/Makefile"
  (cd "$dir" && git init -q -b main && git add -A && git -c user.name=Bench -c user.email=bench@localhost commit -qm project)
  git clone -q --bare "$dir" "$MEMORY_WORK/project.git"
}

contract_once() {
  local row=$1 system=$2 dir=${AT[$2]}/run begin end how seconds
  mkdir -p "$dir"
  case $row in
    mail)
      case $system in ext4) how=safe ;; metadata-prefix) how=data-first ;; steadfast) how=once ;; sync) how=never ;; esac
      settle "$system"
      seconds=$("$LOAD" mail "$dir" "$mails" "$how") || die "mail on $system failed"
      record "mail-$backing" mails/s higher "$system" "$(rate "$mails" "$seconds")"
      ;;
    tpcc)
      case $system in ext4) how=EXTRA ;; metadata-prefix) how=FULL ;; steadfast) how=NORMAL ;; sync) how=OFF ;; esac
      tpcc_schema "$dir/db"
      settle "$system"
      begin=$(date +%s%N)
      sqlite3 -bail -cmd "PRAGMA synchronous = $how" "$dir/db" <"$MEMORY_WORK/tpcc.sql" >/dev/null || die "tpcc on $system failed"
      end=$(date +%s%N)
      [ "$(sqlite3 "$dir/db" "PRAGMA integrity_check")" = ok ] || die "tpcc on $system: the database is damaged"
      record "tpcc-$backing" tx/s higher "$system" "$(rate "$transactions" "$(rate $((end - begin)) 1000000000)")"
      ;;
    build)
      settle "$system"
      begin=$(date +%s%N)
      if ! git clone -q "$MEMORY_WORK/project.git" "$dir/project" || ! make -s -C "$dir/project" >/dev/null; then die "build on $system failed"; fi
      end=$(date +%s%N)
      record "build-$backing" s lower "$system" "$(rate $((end - begin)) 1000000000)"
      ;;
  esac
  rm -rf "$dir"
  settle "$system"
}

streams_contracts() {
  local results=$RESULTS run system systems backing row mails=2000 transactions=2000
  if [ -n "$quick" ]; then mails=100 transactions=100; fi
  tpcc_mix "$transactions" >"$MEMORY_WORK/tpcc.sql"
  make_project
  for backing in ${STEADFAST_BENCH_BACKINGS:-disk memory}; do
    volume steadfast ordered "$backing"
    volume metadata-prefix metadata-prefix "$backing"
    volume sync sync "$backing"
    volume ext4 ext4 "$backing"
    for ((run = 0; run <= runs; run++)); do
      begins "$run" steadfast metadata-prefix sync ext4
      for row in mail tpcc build; do
        wanted "$row" || continue
        for system in "${systems[@]}"; do contract_once "$row" "$system"; done
      done
    done
    for system in "${systems[@]}"; do unvolume "$system"; done
  done
  RESULTS=$results
  about+=("mails=$mails" "transactions=$transactions")
}
