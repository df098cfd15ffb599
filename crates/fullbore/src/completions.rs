//! `fullbore completions`: what a shell needs to complete this program's command lines.

use crate::failure::Failure;
use crate::output;
use clap::Args;
use clap_complete::Shell;

/// Print what a shell needs to complete command lines.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  fullbore completions bash | sudo tee /usr/share/bash-completion/completions/fullbore
  fullbore completions zsh | sudo tee /usr/local/share/zsh/site-functions/_fullbore
  fullbore completions fish | tee ~/.config/fish/completions/fullbore.fish")]
pub struct Completions {
    /// The shell.
    shell: Shell,
}

/// Prints them for this command line.
pub fn run(completions: &Completions, mut command: clap::Command) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(completions.shell, &mut command, "fullbore", &mut script);
    output::line(String::from_utf8_lossy(&script).trim_end());
    Ok(())
}
