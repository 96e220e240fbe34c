//! `steadfast man`: writes the manual: a page for each command, from its own help, and the pages written by hand,
//! `mount.steadfast(8)` and `steadfast(7)`.

mod sections;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Command, CommandFactory};
use clap_mangen::Man;

use crate::failure::Failure;
use crate::features::Feature;
use crate::{mount_options, text};

/// References at the end of a page.
const SEE_ALSO: &str = "steadfast(1), steadfast(7), mount.steadfast(8)";

/// Pages that are written by hand.
pub(crate) const WRITTEN: [(&str, &str); 2] = [
    (
        "mount.steadfast.8",
        include_str!("../../man/mount.steadfast.8"),
    ),
    ("steadfast.7", include_str!("../../man/steadfast.7")),
];

/// Placeholder of the options in mount.steadfast(8).
const OPTIONS: &str = ".\\\" OPTIONS\n";

/// A page written by hand, with the generated part inserted.
fn whole(page: &str) -> String {
    page.replace(OPTIONS, &mount_options::manual())
}

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory for the pages, such as /usr/local/share/man: they go to man1, man7 and man8 in it
    dir: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    for (name, page) in pages()? {
        let section = name.rsplit('.').next().unwrap_or("1");
        let dir = args.dir.join(format!("man{section}"));
        std::fs::create_dir_all(&dir).map_err(|e| Failure::at(&dir, e))?;
        let path = dir.join(&name);
        steadfast::atomic_replace(&path, page.as_bytes())
            .map_err(|e| Failure::new(e.to_string()))?;
        text::print(&path.display().to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// All pages by their names.
fn pages() -> Result<Vec<(String, String)>, Failure> {
    let mut root = crate::Cli::command().disable_help_subcommand(true);
    // The version of a page has no features of this program.
    root = root.long_version(env!("CARGO_PKG_VERSION"));
    // A table in --help; mount.steadfast(8) in the manual, where roff would make one paragraph of it.
    root = root.mut_subcommand("mount", |mount| {
        mount.mut_arg("options", |options| {
            options
                .long_help("Mount options, separated by commas: mount.steadfast(8) explains them")
        })
    });
    root.build();
    let mut pages = Vec::new();
    add(&root, "steadfast", &mut pages)?;
    pages.extend(WRITTEN.map(|(name, page)| (name.to_owned(), whole(page))));
    Ok(pages)
}

fn add(command: &Command, name: &str, pages: &mut Vec<(String, String)>) -> Result<(), Failure> {
    let file = format!("{name}.1");
    let failed = |e: std::io::Error| Failure::at(Path::new(&file), e);
    let man = Man::new(command.clone().display_name(name.to_owned()))
        .title(name.to_uppercase())
        .source(format!("steadfast {}", env!("CARGO_PKG_VERSION")))
        .manual("Steadfast");
    let mut page = Vec::new();
    man.render(&mut page).map_err(failed)?;
    let mut page = String::from_utf8_lossy(&page).into_owned();
    page.push_str(&match Feature::missing_for(name) {
        Some(feature) => sections::of_missing(feature),
        None => sections::of(name).unwrap_or_default(),
    });
    page.push_str(&format!(".SH \"SEE ALSO\"\n{SEE_ALSO}\n"));
    pages.push((file, page));
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        add(sub, &format!("{name}-{}", sub.get_name()), pages)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_and_every_option_is_on_it() {
        let pages = pages().unwrap_or_default();
        let page = |name: &str| pages.iter().find(|(n, _)| n == name).map(|(_, page)| page);
        let mut todo = vec![(crate::Cli::command(), "steadfast".to_owned())];
        let mut seen = 0;
        while let Some((command, name)) = todo.pop() {
            let text = page(&format!("{name}.1"));
            assert!(text.is_some(), "{name}");
            seen += 1;
            for option in command.get_arguments().filter(|a| !a.is_hide_set()) {
                if let (Some(long), Some(text)) = (option.get_long(), text) {
                    let long = long.replace('-', "\\-");
                    assert!(text.contains(&format!("\\-\\-{long}")), "{name}: {long}");
                }
            }
            let subs = command.get_subcommands().filter(|sub| !sub.is_hide_set());
            todo.extend(subs.map(|sub| (sub.clone(), format!("{name}-{}", sub.get_name()))));
        }
        assert_eq!(pages.len(), seen + WRITTEN.len());
        let mount = page("steadfast-mount.1").map_or("", String::as_str);
        assert!(mount.contains("mount.steadfast(8) explains them"));
        assert!(
            !mount.contains("background"),
            "internal options stay inside"
        );
    }

    #[test]
    fn every_page_has_exit_codes_and_examples() {
        let pages = pages().unwrap_or_default();
        assert!(pages.len() > 20);
        for (name, page) in pages {
            for section in ["\n.SH \"EXIT STATUS\"\n", "\n.SH EXAMPLES\n"] {
                let (_, text) = page.split_once(section).unwrap_or_default();
                let text = text.split("\n.SH").next().unwrap_or_default();
                assert!(text.trim().len() > 20, "{name} lacks {section}");
            }
        }
    }

    #[test]
    fn every_example_is_a_command_line_of_this_version() {
        use clap::Parser;
        for sections in sections::all() {
            for (line, _) in sections.examples {
                let parsed = crate::Cli::try_parse_from(line.split(' '));
                assert!(parsed.is_ok(), "{}: {line}", sections.name);
                let command = line.replace(' ', "-");
                assert!(
                    command.starts_with(sections.name),
                    "{}: {line}",
                    sections.name
                );
            }
        }
    }

    #[test]
    fn the_page_of_mount_options_names_them_all() {
        let page = whole(WRITTEN[0].1);
        assert!(page.contains(&mount_options::manual()) && !page.contains(OPTIONS));
    }

    #[test]
    fn the_pages_written_by_hand_begin_with_their_title_and_hold_plain_roff() {
        for (name, page) in WRITTEN {
            let (title, section) = name.rsplit_once('.').unwrap_or((name, ""));
            let head = format!(".TH {} {section} ", title.to_uppercase());
            assert!(page.starts_with(&head), "{name}");
            for line in page.lines() {
                assert!(line.is_ascii() && line.len() <= 140, "{name}: {line}");
                assert!(!line.ends_with(' '), "{name}: {line}");
            }
        }
    }
}
