// Package crashtest runs power-cut tests over the command "steadfast crash test".
//
// Run starts the command, which starts this test binary again for the workload, whose calls it records, and once for each state that a
// power cut could leave, for the check. Both find their way back to the same test by its name, and end there.
package crashtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// role tells a process of this test binary what it is for: "workload:TestName" or "check:TestName".
const role = "STEADFAST_CRASH_TEST_ROLE"

// State is a state that a power cut could leave.
type State struct {
	// Dir holds the files.
	Dir string
	// Acked lists what the workload acknowledged before the cut: it must be there.
	Acked []string
	// Issued lists that, and what it may have been about to acknowledge.
	Issued []string
}

// Call is a call to blame.
type Call struct {
	Call int    `json:"call"`
	Text string `json:"text"`
}

// Under is a finding on one file system.
type Under struct {
	Model   string `json:"model"`
	Durable *Call  `json:"durable"`
	Lost    []Call `json:"lost"`
}

// Finding is one way in which the workload does not survive.
type Finding struct {
	ID    string  `json:"id"`
	Kind  string  `json:"kind"`
	Line  string  `json:"line"`
	Under []Under `json:"under"`
}

// Report is what "steadfast crash test --json" prints.
type Report struct {
	Findings []Finding `json:"findings"`
	// Raw is all of it.
	Raw json.RawMessage `json:"-"`
}

// Ack says, in a workload, that something is done and must survive.
func Ack(text string) error {
	path := os.Getenv("STEADFAST_CRASH_ACK")
	if path == "" {
		return nil
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// Run records the workload and judges every state. Options are those of "steadfast crash test". It fails the test if the command is not
// there or cannot run the workload.
func Run(t testing.TB, workload func(dir string) error, check func(State) error, options ...string) *Report {
	t.Helper()
	switch os.Getenv(role) {
	case "workload:" + t.Name():
		end(workload(os.Getenv("CRASH_DIR")))
	case "check:" + t.Name():
		end(check(State{os.Getenv("CRASH_DIR"), lines("CRASH_ACKED"), lines("CRASH_ISSUED")}))
	}
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// What the test harness prints is no acknowledgement, and no part of a verdict.
	again := func(what, output string) string {
		words := []string{role + "=" + what + ":" + t.Name(), binary, "-test.run=^" + t.Name() + "$"}
		for i, word := range words {
			words[i] = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		}
		return "exec env " + strings.Join(words, " ") + " " + output
	}
	words := append([]string{"crash", "test", "--json"}, options...)
	words = append(words, "--check", again("check", "2>&1 >/dev/null"), "--", "sh", "-c", again("workload", ">/dev/null"))
	out, err := run(words...)
	var exit *exec.ExitError
	if err != nil && !(errors.As(err, &exit) && len(bytes.TrimSpace(out)) > 0) {
		t.Fatal(err)
	}
	report := &Report{Raw: out}
	if err := json.Unmarshal(out, report); err != nil {
		t.Fatalf("the answer of the command: %v", err)
	}
	return report
}

// end is the end of a process that was started for a role.
func end(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func lines(variable string) []string {
	text, err := os.ReadFile(os.Getenv(variable))
	if err != nil || len(text) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}

func command() string {
	if name := os.Getenv("STEADFAST"); name != "" {
		return name
	}
	return "steadfast"
}

// run runs the command; its error holds what the command said.
func run(words ...string) ([]byte, error) {
	name := command()
	cmd := exec.Command(name, words...)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s %s: %w: %s", name, strings.Join(words[:2], " "), err, strings.TrimSpace(said.String()))
	}
	return out, err
}

// Has tells whether the check said this of a state on this file system.
func (r *Report) Has(model, line string) bool {
	for _, f := range r.Findings {
		for _, u := range f.Under {
			if u.Model == model && strings.Contains(f.Line, line) {
				return true
			}
		}
	}
	return false
}

// AssertSurvives fails the test with the report if anything was found.
func (r *Report) AssertSurvives(t testing.TB) {
	t.Helper()
	if len(r.Findings) > 0 {
		t.Fatalf("a power cut breaks it:\n%s", r)
	}
}

func (r *Report) String() string {
	var b strings.Builder
	for _, f := range r.Findings {
		var on []string
		for _, u := range f.Under {
			on = append(on, u.Model)
		}
		fmt.Fprintf(&b, "%s %s on %s: %s\n", f.ID, f.Kind, strings.Join(on, ", "), f.Line)
		if len(f.Under) > 0 {
			if d := f.Under[0].Durable; d != nil {
				fmt.Fprintf(&b, "  durable  #%d %s\n", d.Call, d.Text)
			}
			for _, l := range f.Under[0].Lost {
				fmt.Fprintf(&b, "  lost     #%d %s\n", l.Call, l.Text)
			}
		}
	}
	return b.String()
}

// LiveMount is a mount whose power can be cut while programs use it.
type LiveMount struct{ Path string }

// Mount mounts a copy of dir at mnt, with the model of a file system, until the test ends.
func Mount(t testing.TB, model, dir, mnt string) *LiveMount {
	t.Helper()
	// The server keeps standard error: a pipe would not end with the command.
	cmd := exec.Command(command(), "crash", "mount", "--fs", model, "--", dir, mnt)
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := run("crash", "stop", "--", mnt); err != nil {
			t.Error(err)
		}
	})
	return &LiveMount{mnt}
}

// Ask sends a command to the mount: "cut", "power-on", "fail", "heal" or "status", with its options. The answer is JSON.
func (m *LiveMount) Ask(what string, options ...string) (map[string]any, error) {
	words := append([]string{"crash", what, "--json"}, options...)
	out, err := run(append(words, "--", m.Path)...)
	if err != nil {
		return nil, err
	}
	answer := map[string]any{}
	return answer, json.Unmarshal(out, &answer)
}
