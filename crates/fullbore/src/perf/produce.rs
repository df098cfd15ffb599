//! x
use crate::failure::Failure;
use clap::Args;
/// x
#[derive(Args, Debug)]
pub struct Produce {}
/// x
pub fn run(_: Produce) -> Result<(), Failure> {
    Ok(())
}
