//! The lines of the broker's log: text for people, or JSON objects for log collectors.
//!
//! Invariant: each JSON line is exactly one object, even if an event contains quotes or newlines.

use clap::ValueEnum;
use fullbore_bench::report::json::{object, plain, string};
use std::fmt;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::{Format, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Values of `--log-format`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Time, level, target and message.
    #[default]
    Text,
    /// {"timestamp", "level", "target", "message"}, and the event's other fields by name.
    Json,
}

/// The formatter of events.
pub enum LogLines {
    /// The formatter of text lines.
    Text(Format),
    /// The formatter of JSON lines.
    Json,
}

impl LogFormat {
    /// Returns the formatter for this format.
    pub fn lines(self) -> LogLines {
        match self {
            LogFormat::Text => LogLines::Text(Format::default()),
            LogFormat::Json => LogLines::Json,
        }
    }
}

impl<S, N> FormatEvent<S, N> for LogLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let LogLines::Text(format) = self else { return writeln!(writer, "{}", json_line(event)) };
        format.format_event(context, writer.by_ref(), event)
    }
}

fn json_line(event: &Event<'_>) -> String {
    let mut time = String::new();
    // If the time cannot be formatted, the field is empty.
    let _ = SystemTime.format_time(&mut Writer::new(&mut time));
    let mut fields = JsonFields::default();
    event.record(&mut fields);
    let metadata = event.metadata();
    let own = [
        ("timestamp", string(&time)),
        ("level", string(metadata.level().as_str())),
        ("target", string(metadata.target())),
    ];
    object(own.into_iter().chain(fields.0.iter().map(|(name, value)| (*name, value.clone()))))
}

/// The fields of an event, including `message`, with their values as JSON text.
#[derive(Default)]
struct JsonFields(Vec<(&'static str, String)>);

impl Visit for JsonFields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.push((field.name(), string(&format!("{value:?}"))));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.push((field.name(), string(value)));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.push((field.name(), plain(Some(value))));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.push((field.name(), plain(Some(value))));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.push((field.name(), plain(Some(value))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("unbroken").write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_event_with_quotes_and_newlines_is_one_object_on_one_line() {
        let sink = Sink::default();
        let log = sink.clone();
        let subscriber =
            tracing_subscriber::fmt().event_format(LogFormat::Json.lines()).with_writer(move || log.clone()).finish();
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(target: "fullbore::test", topic = "a\"b", partition = 3, "cannot\nread {}", 5);
        });
        let text = String::from_utf8(sink.0.lock().expect("unbroken").clone()).expect("UTF-8");
        let rest = ",\"level\":\"WARN\",\"target\":\"fullbore::test\",\"message\":\"cannot\\u000aread 5\",\"topic\":\"a\\\"b\",\
                    \"partition\":3}\n";
        assert!(text.starts_with("{\"timestamp\":\"20") && text.ends_with(rest), "{text}");
        assert_eq!(text.lines().count(), 1);
    }
}
