//! The table of plans, and the comparison with the stores of a call.

use super::groups::Found;

/// The table that the search of orders writes.
const TEXT: &str = include_str!("../../../../../proofs/pmcheck/plans.txt");

/// Content of the table.
pub struct Table {
    /// Groups, with their content.
    pub labels: Vec<(String, String)>,
    /// Groups that may be in any phase, and those that may be in an earlier one.
    anywhere: Vec<String>,
    earlier: Vec<String>,
    /// Each call's groups between fences.
    calls: Vec<(String, Vec<Vec<String>>)>,
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

impl Table {
    pub fn read() -> Table {
        let mut table = Table {
            labels: vec![],
            anywhere: vec![],
            earlier: vec![],
            calls: vec![],
        };
        for line in TEXT.lines() {
            let fields: Vec<&str> = line.split(" | ").map(str::trim).collect();
            match fields[..] {
                ["label", label, content] => table.labels.push((label.into(), content.into())),
                ["anywhere", labels] => table.anywhere = words(labels),
                ["earlier", labels] => table.earlier = words(labels),
                ["call", name, ..] => {
                    let plan = line.splitn(3, " | ").nth(2).unwrap_or_default();
                    let phases = plan.trim_end_matches('|').split('|').map(words);
                    table.calls.push((name.into(), phases.collect()));
                }
                _ => {}
            }
        }
        assert!(!table.calls.is_empty() && !table.anywhere.is_empty());
        table
    }

    /// Whether a call followed a plan: the groups that it has are in their phases, in order where they share a line, and no
    /// fence is left out or added.
    pub fn compare(&self, plan: &str, found: &Found) -> Result<(), String> {
        let known = self.calls.iter().find(|call| call.0 == plan);
        let (_, plan) = known.unwrap_or_else(|| panic!("the table has no call {plan}"));
        let has = |label: &str| found.phases.iter().flatten().any(|l| *l == label);
        let is = |list: &[String], label: &str| list.iter().any(|l| l == label);
        let fixed = |label: &&String| has(label) && !is(&self.anywhere, label);
        // The phases that the plan has for these groups. A group that may be anywhere needs a phase only if there is no other.
        let mut wanted: Vec<Vec<&String>> = plan
            .iter()
            .map(|phase| phase.iter().filter(fixed).collect())
            .filter(|phase: &Vec<&String>| !phase.is_empty())
            .collect();
        if wanted.is_empty() && !found.phases.is_empty() {
            wanted = vec![vec![]];
        }
        if wanted.len() != found.phases.len() {
            return Err(format!(
                "{} fences instead of {}",
                found.phases.len(),
                wanted.len()
            ));
        }
        for (number, phase) in found.phases.iter().enumerate() {
            for label in phase {
                if !plan.iter().flatten().any(|l| l == label) {
                    return Err(format!("{label} is no part of it"));
                }
                let at = wanted
                    .iter()
                    .position(|phase| phase.iter().any(|l| *l == label));
                let allowed = match at {
                    None => is(&self.anywhere, label),
                    Some(at) => at == number || (is(&self.earlier, label) && number < at),
                };
                if !allowed {
                    return Err(format!("{label} in phase {number}"));
                }
            }
        }
        let rank = |label: &str| plan.iter().flatten().position(|l| l == label);
        for (line, labels) in &found.lines {
            let mut order = labels.iter().map(|label| rank(label));
            if !order.by_ref().is_sorted() {
                return Err(format!("line {line:#x} has {labels:?} in this order"));
            }
        }
        Ok(())
    }
}
