//! The binary `fullbore`. Its code is in the library of the same name.

fn main() -> std::process::ExitCode {
    fullbore::main()
}
