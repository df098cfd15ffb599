//! Translates regular expressions from the syntax of RE2/J, which Kafka uses, into that of Rust's `regex` crate.
//! Together, the translation and `regex` accept the same expressions as RE2/J, with the same meaning.
//!
//! The translation parses only what differs: repetitions, groups, escapes and classes. `regex` parses everything else.
//! Limits of size are in `regex.rs`. One difference remains: the names of Unicode classes are those of `regex`. Topic
//! names are ASCII, so Unicode classes are rarely useful.

/// The largest count that a repetition may have.
const REPEAT_MAX: u32 = 1_000;
/// The names of POSIX classes.
const POSIX: [&str; 14] = [
    "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space", "upper", "word",
    "xdigit",
];

/// Translates an expression.
///
/// # Errors
/// Returns the reason why RE2/J would refuse the expression.
pub(super) fn translated(pattern: &str) -> Result<String, String> {
    let mut translation = Translation { rest: pattern, out: String::with_capacity(pattern.len()) };
    translation.run()?;
    Ok(translation.out)
}

/// A translation in progress: the rest of the input, and the output so far.
struct Translation<'p> {
    rest: &'p str,
    out: String,
}

/// The meaning of an escape sequence.
enum Escape {
    Char(char),
    /// A set of characters or an assertion, in the syntax of `regex`.
    Other(String),
}

impl Translation<'_> {
    fn run(&mut self) -> Result<(), String> {
        let mut is_repeated = false;
        while let Some(next) = self.rest.chars().next() {
            if let Some(repetition) = self.repetition()? {
                if is_repeated {
                    return Err(format!("invalid nested repetition operator `{repetition}`"));
                }
                self.out.push_str(&repetition);
                is_repeated = true;
                continue;
            }
            is_repeated = false;
            match next {
                '\\' if self.skip(r"\Q") => self.quote(),
                '\\' => match self.escape()? {
                    Escape::Char(char) => self.push_literal(char),
                    Escape::Other(text) => self.out.push_str(&text),
                },
                '[' => self.class()?,
                '(' if self.skip("(?") => self.group()?,
                '{' | '}' | ']' => {
                    self.rest = &self.rest[1..];
                    self.push_literal(next);
                }
                _ => {
                    self.rest = &self.rest[next.len_utf8()..];
                    self.out.push(next);
                }
            }
        }
        Ok(())
    }

    /// Skips `prefix`. Returns false if the rest does not begin with it.
    fn skip(&mut self, prefix: &str) -> bool {
        let Some(rest) = self.rest.strip_prefix(prefix) else { return false };
        self.rest = rest;
        true
    }

    fn take(&mut self) -> Option<char> {
        let next = self.rest.chars().next()?;
        self.rest = &self.rest[next.len_utf8()..];
        Some(next)
    }

    fn push_literal(&mut self, char: char) {
        self.out.push_str(&format!(r"\x{{{:x}}}", u32::from(char)));
    }

    /// Removes a repetition operator from the input, with the `?` that makes it lazy, and returns it. Returns `None` if
    /// the input does not begin with one.
    fn repetition(&mut self) -> Result<Option<String>, String> {
        let operator = match self.rest.chars().next() {
            Some('*' | '+' | '?') => &self.rest[..1],
            Some('{') => match counted(self.rest)? {
                Some(counted) => counted,
                None => return Ok(None),
            },
            _ => return Ok(None),
        };
        self.rest = &self.rest[operator.len()..];
        let is_lazy = self.skip("?");
        Ok(Some(format!("{operator}{}", if is_lazy { "?" } else { "" })))
    }

    /// Translates literal text up to `\E`.
    fn quote(&mut self) {
        let (literal, after) = self.rest.split_once(r"\E").unwrap_or((self.rest, ""));
        self.rest = after;
        literal.chars().for_each(|char| self.push_literal(char));
    }

    /// Translates the beginning of a group after its `(?`, up to the body of the group.
    fn group(&mut self) -> Result<(), String> {
        if self.skip("P<") || self.skip("<") {
            let (name, after) = self.rest.split_once('>').ok_or("the name of a group is not closed by `>`")?;
            if name.is_empty() || !name.chars().all(|char| char.is_ascii_alphanumeric() || char == '_') {
                return Err(format!("invalid name of a group `{name}`"));
            }
            // In `regex`, a group's name cannot begin with a digit, so all names get a prefix.
            self.out.push_str(&format!("(?P<n{name}>"));
            self.rest = after;
            return Ok(());
        }
        let end = self.rest.find([':', ')']).ok_or("a group is not closed")?;
        let (flags, end) = (&self.rest[..end], &self.rest[end..=end]);
        if let Some(other) = flags.chars().find(|flag| !matches!(flag, 'i' | 'm' | 's' | 'U' | '-')) {
            return Err(format!("a group that begins with `(?` may not have the flag `{other}`"));
        }
        self.out.push_str(if flags.is_empty() { "(?:" } else { "(?" });
        self.out.push_str(flags);
        if !flags.is_empty() || end == ")" {
            self.out.push_str(end);
        }
        self.rest = &self.rest[flags.len() + 1..];
        Ok(())
    }

    /// Removes an escape sequence outside of a class from the input, with its backslash, and returns its meaning.
    fn escape(&mut self) -> Result<Escape, String> {
        let mut chars = self.rest.chars();
        chars.next();
        match chars.next() {
            Some(assertion @ ('A' | 'b' | 'B' | 'z')) => {
                self.rest = chars.as_str();
                Ok(Escape::Other(format!(r"\{assertion}")))
            }
            _ => self.class_escape(),
        }
    }

    /// Removes an escape sequence from the input, with its backslash, and returns its meaning. The sequence is valid
    /// both inside and outside of a class.
    fn class_escape(&mut self) -> Result<Escape, String> {
        self.take();
        let next = self.take().ok_or("a backslash at the end")?;
        let char = match next {
            'd' | 'D' | 's' | 'S' | 'w' | 'W' => return Ok(Escape::Other(format!(r"\{next}"))),
            'p' | 'P' => return self.unicode_class(next == 'P').map(Escape::Other),
            '1'..='7' if !self.rest.starts_with(is_octal) => {
                return Err(format!(r"back-references such as `\{next}` are not supported"));
            }
            '0'..='7' => {
                let end = self.rest.chars().take(2).take_while(|char| is_octal(*char)).count();
                let digits = format!("{next}{}", &self.rest[..end]);
                self.rest = &self.rest[end..];
                u32::from_str_radix(&digits, 8).ok().and_then(char::from_u32)
            }
            'x' => self.hexadecimal(),
            'a' => Some('\x07'),
            'f' => Some('\x0c'),
            'n' => Some('\n'),
            'r' => Some('\r'),
            't' => Some('\t'),
            'v' => Some('\x0b'),
            other if other.is_ascii_alphanumeric() => None,
            other => Some(other),
        };
        char.map(Escape::Char).ok_or_else(|| format!(r"invalid escape sequence `\{next}`"))
    }

    /// Removes two hexadecimal digits, or any number of them in braces, and returns their character. `None` if they do
    /// not denote one.
    fn hexadecimal(&mut self) -> Option<char> {
        let digits = if self.skip("{") {
            let (digits, after) = self.rest.split_once('}')?;
            self.rest = after;
            digits
        } else {
            let digits = self.rest.get(..2)?;
            self.rest = &self.rest[2..];
            digits
        };
        let is_hexadecimal = !digits.is_empty() && digits.chars().all(|digit| digit.is_ascii_hexdigit());
        is_hexadecimal.then(|| u32::from_str_radix(digits, 16).ok().and_then(char::from_u32))?
    }

    /// Removes the name of a Unicode class and returns the class in the syntax of `regex`. The name is a single letter,
    /// or is in braces, where a leading `^` negates the class.
    fn unicode_class(&mut self, is_negated: bool) -> Result<String, String> {
        let (is_other, name) = if self.skip("{") {
            let is_other = self.skip("^");
            let (name, after) = self.rest.split_once('}').ok_or(r"`\p{` is not closed")?;
            self.rest = after;
            (is_other, name.to_owned())
        } else {
            (false, self.take().ok_or(r"`\p` has no name")?.to_string())
        };
        if name == "Any" || !name.is_empty() && name.chars().all(|char| char.is_ascii_alphabetic() || char == '_') {
            return Ok(format!(r"\{}{{{name}}}", if is_negated == is_other { 'p' } else { 'P' }));
        }
        Err(format!(r"invalid Unicode class `\p{{{name}}}`"))
    }

    /// Translates a class in brackets. Inside it, `[`, `&&`, `--` and `~~` are ordinary characters.
    fn class(&mut self) -> Result<(), String> {
        self.take();
        self.out.push('[');
        if self.skip("^") {
            self.out.push('^');
        }
        let mut is_first = true;
        while is_first || !self.skip("]") {
            is_first = false;
            if self.posix_class()? {
                continue;
            }
            let low = match self.class_item()? {
                Escape::Char(char) => char,
                Escape::Other(set) => {
                    self.out.push_str(&set);
                    continue;
                }
            };
            self.push_literal(low);
            if self.rest.starts_with('-') && !self.rest.starts_with("-]") {
                self.take();
                match self.class_item()? {
                    Escape::Char(high) if low <= high => {
                        self.out.push('-');
                        self.push_literal(high);
                    }
                    _ => return Err(format!("invalid range of characters `{low}-`")),
                }
            }
        }
        self.out.push(']');
        Ok(())
    }

    fn class_item(&mut self) -> Result<Escape, String> {
        if self.rest.starts_with('\\') {
            return self.class_escape();
        }
        self.take().map(Escape::Char).ok_or_else(|| "missing closing `]`".to_owned())
    }

    /// Translates a POSIX class. Returns false if the input does not begin with one.
    fn posix_class(&mut self) -> Result<bool, String> {
        let Some((name, after)) = self.rest.strip_prefix("[:").and_then(|rest| rest.split_once(":]")) else {
            return Ok(false);
        };
        if !POSIX.contains(&name.strip_prefix('^').unwrap_or(name)) {
            return Err(format!("invalid class `[:{name}:]`"));
        }
        self.out.push_str(&format!("[:{name}:]"));
        self.rest = after;
        Ok(true)
    }
}

/// Returns the counted repetition at the beginning of the text. `None` if the braces are ordinary characters.
fn counted(text: &str) -> Result<Option<&str>, String> {
    let Some(end) = text.find('}') else { return Ok(None) };
    let (least, most) = text[1..end].split_once(',').unwrap_or((&text[1..end], ""));
    let is_number = |digits: &str| digits.bytes().all(|digit| digit.is_ascii_digit());
    if least.is_empty() || !is_number(least) || !is_number(most) {
        return Ok(None);
    }
    let number = |digits: &str| digits.parse::<u32>().unwrap_or(u32::MAX);
    let (least, most) = (number(least), if most.is_empty() { 0 } else { number(most) });
    match least.max(most) <= REPEAT_MAX {
        true => Ok(Some(&text[..=end])),
        false => Err(format!("a repetition has a count above {REPEAT_MAX}")),
    }
}

fn is_octal(char: char) -> bool {
    matches!(char, '0'..='7')
}
