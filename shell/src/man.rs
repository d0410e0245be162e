//! Manual pages, made from the definition of a command line. Only the feature `man` has them, so they are in no shipped
//! program.

use std::fs;
use std::io;
use std::path::Path;

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

/// A manual page.
#[derive(Debug)]
pub struct Page {
    /// Name of its file, such as `berth-agent.8`.
    pub file: String,
    /// Text in the language of `man`.
    pub text: Vec<u8>,
}

/// Writes the pages of a command into a directory.
///
/// # Errors
/// When a file cannot be written.
pub fn write(command: Command, section: &str, directory: &Path) -> io::Result<()> {
    for page in pages(command, section)? {
        fs::write(directory.join(page.file), page.text)?;
    }
    Ok(())
}

/// Returns the pages of a command and of its subcommands. `section` is the section of the manual, such as 8 for services.
///
/// # Errors
/// Never in practice: the pages are written to memory.
pub fn pages(command: Command, section: &str) -> io::Result<Vec<Page>> {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let source = format!("Berth {}", command.get_version().unwrap_or_default());
    let mut pages = vec![page(&command, section, &source)?];
    for sub in shown(&command) {
        pages.push(page(sub, section, &source)?);
    }
    Ok(pages)
}

fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|sub| !sub.is_hide_set())
}

fn page(command: &Command, section: &str, source: &str) -> io::Result<Page> {
    let man = Man::new(command.clone())
        .section(section)
        .source(source)
        .manual("Berth");
    let mut text = vec![];
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if shown(command).next().is_some() {
        man.render_subcommands_section(&mut text)?;
    }
    if let Some(after) = command.get_after_long_help() {
        sections(&after.to_string()).to_writer(&mut text)?;
    }
    Ok(Page {
        file: man.get_filename(),
        text,
    })
}

/// Converts the text after the options. A line without indentation is a heading. Examples keep their lines; in other
/// sections, a line is a term with its text (see [`entry`]) or part of a paragraph.
fn sections(text: &str) -> Roff {
    let mut roff = Roff::new();
    let mut is_example = false;
    let mut is_entry = false;
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let words = line.trim_start();
        if !line.starts_with(' ') && !words.is_empty() {
            if is_example {
                roff.control("fi", []);
            }
            roff.control("SH", [words]);
            is_example = words.starts_with("EXAMPLES");
            is_entry = false;
            if is_example {
                roff.control("nf", []);
            }
        } else if is_example {
            let is_last = lines.peek().is_none_or(|next| !next.starts_with(' '));
            if is_last && words.is_empty() {
                continue;
            }
            roff.text([roman(line.strip_prefix("  ").unwrap_or(line))]);
        } else if let Some((term, meaning)) = entry(line, lines.peek().copied()) {
            roff.control("TP", []);
            roff.text([bold(term)]);
            if !meaning.is_empty() {
                roff.text([roman(meaning)]);
            }
            is_entry = true;
        } else if !words.is_empty() {
            if is_entry && indentation(line) == ENTRY {
                roff.control("PP", []);
                is_entry = false;
            }
            roff.text([roman(words)]);
        }
    }
    if is_example {
        roff.control("fi", []);
    }
    roff
}

/// Indentation of a term.
const ENTRY: usize = 2;

fn indentation(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// Returns a term and the beginning of its text. Two spaces separate them, or the text begins in the next line, deeper.
/// `None` if the line does not begin with a term.
fn entry<'a>(line: &'a str, next: Option<&str>) -> Option<(&'a str, &'a str)> {
    if indentation(line) != ENTRY {
        return None;
    }
    let words = line.trim();
    if let Some((term, meaning)) = words.split_once("  ") {
        return Some((term, meaning.trim_start()));
    }
    let goes_deeper = next.is_some_and(|next| indentation(next) > ENTRY);
    goes_deeper.then_some((words, ""))
}

#[cfg(test)]
mod tests {
    use clap::Arg;

    use super::*;

    const AFTER: &str = "\
EXIT STATUS
  0  Done.
  1  Failed: standard error
     has the reason.
  `sub`: the same
  two.

FILES
  ~/.kube/config
      Read first.

EXAMPLES
  Do it:
      prog --flag

SEE ALSO
  other";

    fn text(page: &Page) -> &str {
        std::str::from_utf8(&page.text).unwrap()
    }

    fn command() -> Command {
        Command::new("prog")
            .version("1.2.3")
            .about("Does it.")
            .after_long_help(AFTER)
            .arg(Arg::new("flag").long("flag").help("A flag."))
            .subcommand(Command::new("sub").about("Does less."))
            .subcommand(Command::new("__complete").hide(true))
    }

    #[test]
    fn each_shown_command_has_a_page() {
        let pages = pages(command(), "8").unwrap();
        let files: Vec<&str> = pages.iter().map(|page| page.file.as_str()).collect();
        assert_eq!(files, ["prog.8", "prog-sub.8"]);
        for page in &pages {
            assert!(text(page).contains(r#""Berth 1.2.3""#), "{}", text(page));
        }
        assert!(text(&pages[0]).contains("prog\\-sub(8)"), "{}", text(&pages[0]));
        assert!(text(&pages[1]).contains(".SH NAME\nprog\\-sub \\- Does less."));
    }

    #[test]
    fn the_text_after_the_options_has_sections_of_its_own() {
        let page = &pages(command(), "1").unwrap()[0];
        let (_, after) = text(page).split_once(".SH \"EXIT STATUS\"\n").unwrap();
        let expected = "\
.TP
\\fB0\\fR
Done.
.TP
\\fB1\\fR
Failed: standard error
has the reason.
.PP
`sub`: the same
two.
.SH FILES
.TP
\\fB~/.kube/config\\fR
Read first.
.SH EXAMPLES
.nf
Do it:
    prog \\-\\-flag
.fi
.SH \"SEE ALSO\"
other
";
        assert_eq!(after, expected);
    }
}
