//! Asks the admin for consent.

use std::io::{BufRead, Result, Write};

/// The admin's answer to a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Apply the plan.
    Yes,
    /// Change nothing. Every answer except `y` and `yes` has this meaning, including an empty line and the end of the
    /// input.
    No,
}

/// Asks the admin whether to apply the plan.
pub fn ask(input: &mut impl BufRead, output: &mut impl Write) -> Result<Answer> {
    write!(output, "Continue? [y/N] ")?;
    output.flush()?;
    let mut line = String::new();
    input.read_line(&mut line)?;
    let yes = ["y", "yes"].iter().any(|word| line.trim().eq_ignore_ascii_case(word));
    Ok(if yes { Answer::Yes } else { Answer::No })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_yes_is_yes() {
        fn answer(text: &str) -> Answer {
            let mut asked = Vec::new();
            let answer = ask(&mut text.as_bytes(), &mut asked).unwrap();
            assert_eq!(asked, b"Continue? [y/N] ");
            answer
        }
        for text in ["y\n", "Y\n", "yes\n", " YES \n", "y"] {
            assert_eq!(answer(text), Answer::Yes, "{text:?}");
        }
        for text in ["", "\n", "n\n", "no\n", "ye\n", "yes please\n", "\ny\n"] {
            assert_eq!(answer(text), Answer::No, "{text:?}");
        }
    }
}
