# Applications: git, LMDB, and RocksDB under YCSB's workloads. Sourced by bench/pm.sh.
# shellcheck shell=bash disable=SC2034,SC2154

pm_applications() {
  local keys=500000 synced=20000 records=100000 operations=100000 threads=4 versions=4000
  if [ -n "$quick" ]; then keys=20000 synced=1000 records=10000 operations=10000 versions=400; fi
  local only=${STEADFAST_BENCH_ROWS:-} results=$RESULTS run system all systems tools=$TARGET/bench-applications
  local repository=$MEMORY_WORK/versions.git
  local -A at=()
  mkdir -p "$tools"
  application lmdb -llmdb
  application ycsb -pthread -lrocksdb -lm
  make_versions "$repository" "$versions"
  chosen "${PM_SYSTEMS[@]}"
  for system in "${all[@]}"; do
    volume "$system"
    at[$system]=$MOUNTED
    "$LOAD" clone "$repository" "$MOUNTED/tree" >/dev/null || die "git clone on $system failed"
  done
  for ((run = 0; run <= runs; run++)); do
    say "$(date +%T) applications: run $run of $runs"
    in_turns "$run" "${all[@]}"
    RESULTS=$results
    if ((run == 0)); then RESULTS=/dev/null; fi
    if wanted checkout; then for system in "${systems[@]}"; do pm_checkout "$system"; done; fi
    if wanted lmdb; then figures_of lmdb keys/s lmdb "$keys" "$synced"; fi
    if wanted ycsb; then figures_of ycsb ops/s ycsb "$records" "$operations" "$threads"; fi
  done
  RESULTS=$results
  for system in "${all[@]}"; do unvolume "$system"; done
  rm -rf "$repository"
  about+=("versions_files=$versions" "lmdb_keys=$keys" "lmdb_synced_keys=$synced" "ycsb_records=$records"
    "ycsb_operations=$operations" "ycsb_threads=$threads")
}

wanted() { case " ${only:-$1} " in *" $1 "*) ;; *) return 1 ;; esac; }

# application NAME LIBRARY…: one of the C programs.
application() {
  local name=$1
  shift
  cc -O2 -std=gnu11 -o "$tools/$name" "$root/bench/pm/applications/$name.c" "$@" || die "bench/pm/applications/$name.c does not build"
}

# Two versions of so many files of about 8 KiB, of which half differ.
make_versions() {
  export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
  git init -q --bare --initial-branch=main "$1"
  awk -v files="$2" 'BEGIN {
      for (version = 0; version < 2; version++) {
        printf "commit refs/heads/main\ncommitter Bench <bench@localhost> %d +0000\ndata 6\nchange\n", 1700000000 + version
        for (f = 0; f < files; f++) {
          if (version > 0 && f % 2) continue
          text = ""
          for (l = 0; l < 130 + f % 97; l++) text = text sprintf("line %d of file %d, %d, %d of it\n", l, f, version * 7919, l * f % 8191)
          printf "M 100644 inline dir-%d/sub-%d/file-%d.txt\ndata %d\n%s\n", f % 40, f % 80, f, length(text), text
        }
        print ""
      }
    }' | git -C "$1" fast-import --quiet
  git -C "$1" gc -q
  git -C "$1" tag old main~1
  git -C "$1" tag new main
}

# To the old version, and back.
pm_checkout() {
  local system=$1 there back
  settle "$system" "${at[$system]}"
  # shellcheck disable=SC2015 # either may fail
  there=$("$LOAD" checkout "${at[$system]}/tree" old) && back=$("$LOAD" checkout "${at[$system]}/tree" new) ||
    die "git checkout on $system failed"
  record checkout ms lower "$system" "$(awk -v a="$there" -v b="$back" 'BEGIN { printf "%.3f", (a + b) * 500 }')"
}

# figures_of PREFIX UNIT PROGRAM ARGUMENT…: runs a program on each system, in this run's order, and keeps its figures.
figures_of() {
  local prefix=$1 unit=$2 program=$3 system figures name value
  shift 3
  for system in "${systems[@]}"; do
    settle "$system" "${at[$system]}"
    figures=$("$tools/$program" "${at[$system]}" "$@") || die "$program on $system failed"
    while read -r name value; do record "$prefix-$name" "$unit" higher "$system" "$value"; done <<<"$figures"
  done
}
