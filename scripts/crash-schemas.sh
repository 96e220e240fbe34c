#!/usr/bin/env bash
# A JUnit and a SARIF report against their schemas, which come from registries when this runs: the schema of JUnit as pytest tests it
# (PyPI), the schema of SARIF 2.1.0 from the crate serde-sarif (crates.io).
#
#   scripts/crash-schemas.sh JUNIT SARIF
#
# Exits 0, or 1 if a report is not as its schema says. Without network it says in one line what was left out, and exits 0.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"

case ${1:-} in -h|--help) sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;; esac
[ $# = 2 ] || { warn 'needs a JUnit and a SARIF report (see --help)'; exit 2; }
junit=$(readlink -f "$1")
sarif=$(readlink -f "$2")

place=$TOOLS/crash-schemas
fetched() {
  mkdir -p "$place/source/src"
  [ -x "$place/venv/bin/python" ] || python3 -m venv "$place/venv"
  "$place/venv/bin/pip" install --quiet jsonschema==4.23.0 lxml==5.3.0 setuptools setuptools_scm wheel
  if [ ! -e "$place/junit.xsd" ]; then
    "$place/venv/bin/pip" download --quiet --no-deps --no-binary pytest --no-build-isolation --dest "$place/source" pytest==8.3.4
    tar -xzOf "$place/source/pytest-8.3.4.tar.gz" pytest-8.3.4/testing/example_scripts/junit-10.xsd >"$place/junit.new"
    mv "$place/junit.new" "$place/junit.xsd"
  fi
  if [ ! -e "$place/sarif.json" ]; then
    printf '[package]\nname = "schemas"\nversion = "0.0.0"\nedition = "2021"\n[dependencies]\nserde-sarif = "=0.8.0"\n[workspace]\n' >"$place/source/Cargo.toml"
    touch "$place/source/src/lib.rs"
    (cd "$place/source" && cargo vendor --quiet vendor >/dev/null)
    cp "$place/source/vendor/serde-sarif/src/schema.json" "$place/sarif.json"
  fi
}
if ! (set -e; fetched) >/dev/null 2>&1; then
  say 'left out, because the schemas cannot be had from their registries: JUnit and SARIF reports against their schemas'
  exit 0
fi

"$place/venv/bin/python" - "$place" "$junit" "$sarif" <<'PYTHON'
import json, sys
from jsonschema.validators import validator_for
from lxml import etree

place, junit, sarif = sys.argv[1:]
schema = etree.XMLSchema(etree.parse(place + "/junit.xsd"))
wrong = [] if schema.validate(etree.parse(junit)) else [f"{junit}: {e.line}: {e.message}" for e in schema.error_log]
rules = json.load(open(place + "/sarif.json"))
validator = validator_for(rules)(rules)
wrong += [f"{sarif}: {list(e.path)}: {e.message[:300]}" for e in validator.iter_errors(json.load(open(sarif)))]
# A check that cannot fail is none.
broken = json.load(open(sarif))
broken["runs"][0]["results"][0]["level"] = "perhaps"
if validator.is_valid(broken):
    wrong.append("the schema of SARIF takes a level that there is not")
if schema.validate(etree.fromstring("<testsuites><testcase/></testsuites>")):
    wrong.append("the schema of JUnit takes a test case outside of a suite")
for line in wrong:
    print(line)
if not wrong:
    print("JUnit and SARIF are as their schemas say")
sys.exit(bool(wrong))
PYTHON
note_caught schemas.sarif_level
note_caught schemas.junit_case
