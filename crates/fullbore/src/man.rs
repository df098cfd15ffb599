//! `fullbore man` prints manual pages. They are generated from the definition of the command line, like `--help`.

use crate::failure::Failure;
use crate::output;
use clap::Args;
use clap_mangen::Man as Page;
use std::path::PathBuf;

/// Print the manual page, or write one for every command.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  fullbore man | man -l -
  fullbore man --dir target/man")]
pub struct Man {
    /// Write a page for every command into this directory, which is created if it does not exist: fullbore.1,
    /// fullbore-topics.1 and so on.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Removes the subcommand `help`, which needs no page.
fn without_help(command: clap::Command) -> clap::Command {
    let names: Vec<String> = command.get_subcommands().map(|below| below.get_name().to_owned()).collect();
    let bare = command.disable_help_subcommand(true);
    names.into_iter().fold(bare, |command, name| command.mut_subcommand(name, without_help))
}

/// Prints the page, or writes all pages.
pub fn run(man: &Man, command: clap::Command) -> Result<(), Failure> {
    let mut command = without_help(command);
    command.build();
    let Some(directory) = &man.dir else {
        let mut page = Vec::new();
        Page::new(command).render(&mut page)?;
        output::line(String::from_utf8_lossy(&page).trim_end());
        return Ok(());
    };
    let refused = |error: std::io::Error| {
        Failure::new(format!("cannot write manual pages to {}: {error}; name another with --dir", directory.display()))
    };
    std::fs::create_dir_all(directory).map_err(refused)?;
    clap_mangen::generate_to(command, directory).map_err(refused)?;
    Ok(())
}
