//! The `fullbore` binary. See the library of this name.

fn main() -> std::process::ExitCode {
    fullbore::main()
}
