//! One solver process, spoken to in SMT-LIB. All that is said can be written to a file, which a
//! second solver can be given.

use crate::term::{Defined, Term, define, name};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Most work for one question, in the solver's own units: the same on a busy machine, which a time is not.
const QUESTION_WORK_MAX: u32 = 4_000_000_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    Satisfiable,
    Unsatisfiable,
    Unknown,
}

pub struct Solver {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    defined: Defined,
    /// Asserted terms, one level each.
    asserted: Vec<Term>,
    known: HashMap<Vec<Term>, Answer>,
    script: Option<std::fs::File>,
    answers: Option<std::fs::File>,
    pub questions: u64,
}

impl Solver {
    /// Starts the solver; `record`: the file for the questions, with the answers beside it.
    pub fn start(program: &str, record: Option<&str>) -> std::io::Result<Solver> {
        let mut process = Command::new(program)
            .args(["-in", "-smt2"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (Some(input), Some(output)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(std::io::Error::other("the solver has no pipes"));
        };
        let file = |suffix: &str| {
            let create = |path: &str| std::fs::File::create(format!("{path}{suffix}"));
            record.map(create).transpose()
        };
        let mut solver = Solver {
            process,
            input,
            output: BufReader::new(output),
            defined: Defined::default(),
            asserted: Vec::new(),
            known: HashMap::new(),
            script: file("")?,
            answers: file(".answers")?,
            questions: 0,
        };
        writeln!(solver.input, "(set-option :rlimit {QUESTION_WORK_MAX})")?;
        // Definitions outlive the level on which they were made.
        solver.say("(set-option :global-declarations true)\n(set-logic QF_UFBV)\n")?;
        Ok(solver)
    }

    fn say(&mut self, text: &str) -> std::io::Result<()> {
        self.input.write_all(text.as_bytes())?;
        if let Some(script) = &mut self.script {
            script.write_all(text.as_bytes())?;
        }
        Ok(())
    }

    fn line(&mut self) -> std::io::Result<String> {
        self.input.flush()?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let line = line.trim().to_owned();
        if line.is_empty() || line.starts_with("(error") {
            return Err(std::io::Error::other(format!("the solver said: {line}")));
        }
        Ok(line)
    }

    /// Whether all of these can be true together.
    pub fn ask(&mut self, terms: &[Term]) -> std::io::Result<Answer> {
        if let Some(&answer) = self.known.get(terms) {
            return Ok(answer);
        }
        self.assert(terms)?;
        self.say("(check-sat)\n")?;
        let line = self.line()?;
        let answer = match line.as_str() {
            "sat" => Answer::Satisfiable,
            "unsat" => Answer::Unsatisfiable,
            _ => Answer::Unknown,
        };
        if let Some(answers) = &mut self.answers {
            writeln!(answers, "{line}")?;
        }
        self.questions += 1;
        self.known.insert(terms.to_vec(), answer);
        Ok(answer)
    }

    /// Asserts exactly these; keeps the levels that agree.
    fn assert(&mut self, terms: &[Term]) -> std::io::Result<()> {
        let same = self
            .asserted
            .iter()
            .zip(terms)
            .take_while(|(a, b)| a == b)
            .count();
        let mut text = String::new();
        if self.asserted.len() > same {
            text = format!("(pop {})\n", self.asserted.len() - same);
            self.asserted.truncate(same);
        }
        for &term in &terms[same..] {
            define(term, &mut self.defined, &mut text);
            text.push_str("(push 1)\n");
            text.push_str(&format!("(assert {})\n", name(term)));
            self.asserted.push(term);
        }
        self.say(&text)
    }

    /// The terms' values, after a satisfiable answer about `terms`, which is asked again.
    pub fn values(&mut self, terms: &[Term], of: &[Term]) -> std::io::Result<Vec<String>> {
        self.assert(terms)?;
        let mut text = String::new();
        for &term in of {
            define(term, &mut self.defined, &mut text);
        }
        text.push_str("(check-sat)\n");
        self.input.write_all(text.as_bytes())?;
        self.line()?;
        let mut values = Vec::new();
        for &term in of {
            writeln!(self.input, "(get-value ({}))", name(term))?;
            let line = self.line()?;
            let value = line.trim_end_matches(')').rsplit(' ').next().unwrap_or("?");
            values.push(value.to_owned());
        }
        Ok(values)
    }
}

impl Drop for Solver {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
