//! Binary `fullbore`. See the library of this name.

fn main() -> std::process::ExitCode {
    fullbore::main()
}
