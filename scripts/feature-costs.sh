#!/usr/bin/env bash
# What each feature of the command costs: processor seconds, crates and bytes more than a build without features.
#
#   scripts/feature-costs.sh [--write] [--profile NAME] [FEATURE...]
#
#   --write         put the table into CONTRIBUTING.md, between its markers
#   --profile NAME  the profile (default: release), without debug information and stripped
#   FEATURE...      these features alone, then no table is written (default: each, then all together)
#
# The build without features is made once, in a directory that is removed at the end. Each feature is built in a copy of it. The
# seconds are of all processes of the build, less those that the command's own crate needs without the feature; so another load of
# the machine changes them little. A crate that a feature builds again with more of its own features counts whole.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"

write=
profile=release
features=()
while [ $# -gt 0 ]; do
  case $1 in
    --write)   write=1; shift ;;
    --profile) profile=${2:?"--profile needs a name"}; shift 2 ;;
    -h|--help) sed -n '2,12s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    -*) warn "unknown option '$1' (see --help)"; exit 2 ;;
    *) features+=("$1"); shift ;;
  esac
done
some=${#features[@]}
if ((some)) && [ -n "$write" ]; then warn "--write needs all features: name none"; exit 2; fi
if ! ((some)); then
  line=$(sed -n 's/^default = //p' "$ROOT/crates/cli/Cargo.toml")
  mapfile -t features < <(grep -o '[a-z]\+' <<<"$line")
  features+=("$(IFS=,; echo "${features[*]}")")
fi

make_workdir "${TMPDIR:-/tmp}"
export CARGO_INCREMENTAL=0 CARGO_PROFILE_RELEASE_DEBUG=false CARGO_PROFILE_RELEASE_STRIP=symbols CARGO_PROFILE_QUICK_STRIP=symbols

# build DIR FEATURES: sets SPENT to the processor seconds of the build, in tenths.
build() {
  local times
  times=$(cd "$ROOT" && TIMEFORMAT='%U %S' && { time CARGO_TARGET_DIR=$1 \
    cargo build --quiet --profile "$profile" --locked -p steadfast-cli --no-default-features --features "$2" 2>"$WORK/build.log"; } 2>&1) ||
    { cat "$WORK/build.log" >&2; die "the build with '$2' failed"; }
  SPENT=$(awk '{ printf "%d", ($1 + $2) * 10 }' <<<"$times")
}
crates_of() {
  (cd "$ROOT" && cargo tree --quiet --locked -p steadfast-cli --no-default-features --features "$1" -e normal,build --prefix none) |
    cut -d' ' -f1,2 | sort -u | wc -l
}
bytes_of() { stat -c %s "$1/$profile/steadfast"; }
tenths() { printf '%d.%d' $(($1 / 10)) $(($1 % 10)); }

base=$WORK/base
build "$base" ""
whole=$SPENT
crates=$(crates_of "")
bytes=$(bytes_of "$base")
# The command's own crate, without features: every build below makes it again.
CARGO_TARGET_DIR=$base cargo clean --quiet --manifest-path "$ROOT/Cargo.toml" --profile "$profile" -p steadfast-cli
build "$base" ""
own=$SPENT

table=$WORK/table
{
  echo "| features | processor seconds | crates | bytes |"
  echo "|---|---|---|---|"
  echo "| none | $(tenths "$whole") | $crates | $bytes |"
} >"$table"
for feature in "${features[@]}"; do
  rm -rf "$WORK/copy"
  cp -a "$base" "$WORK/copy"
  build "$WORK/copy" "$feature"
  name="\`$feature\`"
  case $feature in *,*) name="all" ;; esac
  more=$((SPENT > own ? SPENT - own : 0))
  echo "| $name | +$(tenths $more) | +$(($(crates_of "$feature") - crates)) | +$(($(bytes_of "$WORK/copy") - bytes)) |" >>"$table"
done
cat "$table"
[ -z "$write" ] || write_between "feature-costs" "$table" "$ROOT/CONTRIBUTING.md"
