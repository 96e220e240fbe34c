# A repository for measurements that clone one. Sourced by the measurements, never run.
# shellcheck shell=bash

# A repository to clone: 500 files, 20 commits, the same everywhere, packed.
make_repository() {
  export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
  git init -q --bare --initial-branch=main "$1"
  awk 'function random(n) { state = (state * 16807) % 2147483647; return state % n }
    BEGIN {
      state = 7
      for (c = 0; c < 20; c++) {
        printf "commit refs/heads/main\ncommitter Bench <bench@localhost> %d +0000\ndata 6\nchange\n", 1700000000 + c * 3600
        for (f = 0; f < 500; f++) {
          if (c > 0 && random(25) > 0) continue
          text = ""
          lines = 10 + random(120)
          for (l = 0; l < lines; l++) text = text sprintf("line %d of file %d: %d %d\n", l, f, random(1000000), random(1000000))
          printf "M 100644 inline dir-%d/sub-%d/file-%d.txt\ndata %d\n%s\n", f % 5, f % 25, f, length(text), text
        }
        print ""
      }
    }' | git -C "$1" fast-import --quiet
  git -C "$1" gc -q
}
