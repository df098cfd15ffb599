//! Tests the estimate on a simulated link with a known distance, a known rate, and a queue.

use super::*;

/// A link with a queue. Requests are transferred one after another, each in a time in proportion to its size. The
/// response arrives one round trip after the transfer.
struct Link {
    rtt: Duration,
    bytes_per_second: f64,
    free_at: Instant,
}

/// How the application behaves.
#[derive(Clone, Copy)]
enum App {
    /// The application always has a request of this size to send.
    Floods(usize),
    /// The application sends a request of this size once per interval.
    Trickles(usize, Duration),
}

struct Simulation {
    now: Instant,
    link: Link,
    pipe: Pipe,
    app: App,
    next_at: Instant,
    /// The requests in flight, with the times of their responses.
    flying: VecDeque<(Instant, Sent)>,
    window_max: usize,
}

const MB: f64 = 1e6;
const REQUEST: usize = 64 * 1024;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

impl Simulation {
    fn new(rtt: Duration, bytes_per_second: f64, app: App) -> Self {
        let now = Instant::now();
        let link = Link { rtt, bytes_per_second, free_at: now };
        let pipe = Pipe::new(InFlight::Auto, 1 << 30, now);
        Simulation { now, link, pipe, app, next_at: now, flying: VecDeque::new(), window_max: 0 }
    }

    fn send(&mut self, bytes: usize) {
        let sent = self.pipe.sent(bytes, self.now);
        let through =
            self.link.free_at.max(self.now) + Duration::from_secs_f64(bytes as f64 / self.link.bytes_per_second);
        self.link.free_at = through;
        // Responses keep the order of the requests, even when the path becomes shorter.
        let answer = (through + self.link.rtt).max(self.flying.back().map_or(self.now, |(at, _)| *at));
        self.flying.push_back((answer, sent));
    }

    fn fill(&mut self) {
        while self.pipe.has_room() {
            match self.app {
                App::Floods(bytes) => self.send(bytes),
                App::Trickles(bytes, pause) if self.now >= self.next_at => {
                    self.next_at = self.now + pause;
                    self.send(bytes);
                }
                App::Trickles(..) => return self.pipe.limited(),
            }
        }
    }

    /// Runs for `time` and returns the throughput in bytes per second.
    fn run(&mut self, time: Duration) -> f64 {
        let (end, before) = (self.now + time, self.pipe.delivered());
        self.window_max = 0;
        loop {
            self.fill();
            self.window_max = self.window_max.max(self.pipe.window());
            let answer = self.flying.front().map(|(at, _)| *at);
            let record = matches!(self.app, App::Trickles(..)).then_some(self.next_at).filter(|_| self.pipe.has_room());
            let next = [answer, record].into_iter().flatten().min().expect("something comes").max(self.now);
            if next > end {
                self.now = end;
                return (self.pipe.delivered() - before) as f64 / time.as_secs_f64();
            }
            self.now = next;
            if answer == Some(next) {
                let (_, sent) = self.flying.pop_front().expect("just seen");
                self.pipe.answered(&sent, next);
            }
        }
    }

    /// Returns how many bytes the link holds: its rate times the round trip of a lone request.
    fn bdp(&self) -> f64 {
        self.link.rtt.as_secs_f64() * self.link.bytes_per_second
    }

    fn check_window(&self) {
        let bdps = self.pipe.window() as f64 / self.bdp();
        assert!((1.0..=2.5).contains(&bdps), "{bdps} bdps");
    }
}

#[test]
fn a_long_link_is_filled_and_its_queue_is_not_taken_for_distance() {
    for (rtt, rate) in [(150, 22.0), (10, 100.0), (20, 1000.0), (300, 2.0)] {
        let mut link = Simulation::new(ms(rtt), rate * MB, App::Floods(REQUEST));
        link.run(ms(rtt * 30));
        for _ in 0..10 {
            let reached = link.run(Duration::from_secs(7));
            assert!(reached > 0.95 * rate * MB, "{rtt} ms {rate} MB/s: {reached}");
            link.check_window();
        }
    }
}

#[test]
fn the_start_takes_a_few_rounds() {
    let mut link = Simulation::new(ms(150), 100.0 * MB, App::Floods(16_384));
    link.run(ms(150 * 12));
    assert!(link.run(ms(1500)) > 0.95 * 100.0 * MB);
    assert!(!link.pipe.is_in_startup());
}

#[test]
fn a_path_that_becomes_three_times_longer_is_found() {
    let mut link = Simulation::new(ms(50), 20.0 * MB, App::Floods(REQUEST));
    link.run(Duration::from_secs(15));
    link.link.rtt = ms(150);
    link.run(Duration::from_secs(15));
    let reached = link.run(Duration::from_secs(10));
    assert!(reached > 0.95 * 20.0 * MB, "{reached}");
    link.check_window();
}

#[test]
fn a_path_that_becomes_shorter_narrows_the_window() {
    let mut link = Simulation::new(ms(150), 20.0 * MB, App::Floods(REQUEST));
    link.run(Duration::from_secs(15));
    link.link.rtt = ms(50);
    link.run(Duration::from_secs(60));
    assert!(link.run(Duration::from_secs(10)) > 0.95 * 20.0 * MB);
    link.check_window();
}

#[test]
fn a_link_that_becomes_ten_times_wider_is_filled_and_one_that_narrows_is_not_flooded() {
    let mut link = Simulation::new(ms(100), 5.0 * MB, App::Floods(REQUEST));
    link.run(Duration::from_secs(10));
    link.link.bytes_per_second = 50.0 * MB;
    link.run(Duration::from_secs(2));
    assert!(link.run(Duration::from_secs(2)) > 0.9 * 50.0 * MB);
    link.check_window();
    link.link.bytes_per_second = 5.0 * MB;
    link.run(Duration::from_secs(20));
    assert!(link.run(Duration::from_secs(10)) > 0.95 * 5.0 * MB);
    link.check_window();
}

#[test]
fn an_application_that_has_little_to_send_does_not_lower_the_estimate() {
    let mut link = Simulation::new(ms(100), 50.0 * MB, App::Floods(REQUEST));
    link.run(Duration::from_secs(10));
    let before = link.pipe.rate();
    link.app = App::Trickles(1000, ms(1));
    let reached = link.run(Duration::from_secs(60));
    assert!(reached > 0.95e6, "{reached}");
    assert!(link.pipe.rate() >= before);
    link.app = App::Floods(REQUEST);
    link.run(Duration::from_secs(1));
    assert!(link.run(Duration::from_secs(1)) > 0.9 * 50.0 * MB);
}

#[test]
fn a_trickle_never_waits() {
    let mut link = Simulation::new(ms(150), 50.0 * MB, App::Trickles(1000, ms(1)));
    // The first two seconds are not measured, because the window still grows.
    link.run(Duration::from_secs(2));
    let reached = link.run(Duration::from_secs(30));
    assert!(reached > 0.99e6, "{reached}");
}

#[test]
fn requests_larger_than_the_bdp_do_not_hold_the_window_up() {
    // Five requests of a megabyte are always in flight on a link that holds 200 KB.
    let mut link = Simulation::new(ms(10), 20.0 * MB, App::Floods(1_000_000));
    link.run(Duration::from_secs(10));
    for _ in 0..10 {
        assert!(link.run(Duration::from_secs(10)) > 0.95 * 20.0 * MB);
        // A lone request takes 60 ms: the round trip of 10 ms, and 50 ms for its own bytes.
        assert!(link.window_max as f64 <= 2.5 * 0.06 * 20.0 * MB, "{}", link.window_max);
    }
}

#[test]
fn number_of_requests_and_buffer_memory_bound_the_window() {
    let now = Instant::now();
    let mut three = Pipe::new(InFlight::Requests(3), 1 << 30, now);
    let sent: Vec<Sent> = (0..3).map(|_| three.sent(1 << 20, now)).collect();
    assert!(!three.has_room());
    three.answered(&sent[0], now + ms(1));
    assert!(three.has_room());
    three.lost(&sent[1]);
    assert_eq!((three.requests(), three.bytes()), (1, 1 << 20));
    let mut capped = Simulation::new(ms(150), 100.0 * MB, App::Floods(REQUEST));
    capped.pipe.bytes_max = 1 << 20;
    capped.run(Duration::from_secs(10));
    assert_eq!(capped.window_max, 1 << 20);
    assert!(capped.pipe.bytes() <= (1 << 20) + REQUEST);
    let mut small = Simulation::new(ms(1000), 100.0 * MB, App::Floods(10));
    small.run(Duration::from_secs(60));
    assert!(small.pipe.requests() <= REQUESTS_MAX);
}

/// Simulates a broker that gathers requests into objects. It closes an object at eight requests, or after 100 ms. It
/// writes an object in the time `put`, and then acknowledges all of its requests together.
fn gathers(first_alone: bool, put: Duration, time: Duration) -> f64 {
    const SIZE: usize = 1 << 20;
    let began = Instant::now();
    let (mut now, mut pipe) = (began, Pipe::new(InFlight::Auto, 32 << 20, began));
    let (mut gathered, mut stored) = (Vec::new(), VecDeque::new());
    let mut due = began;
    if first_alone {
        let sent = pipe.sent(SIZE, now);
        now += put;
        pipe.answered(&sent, now);
    }
    while now < began + time {
        while pipe.has_room() {
            gathered.push(pipe.sent(SIZE, now));
            if gathered.len() == 8 || due <= now {
                stored.push_back((now + put, std::mem::take(&mut gathered)));
                due = due.max(now) + ms(100);
            }
        }
        let answered = stored.front().map(|(at, _)| *at);
        let closed = (!gathered.is_empty()).then_some(due);
        now = [answered, closed].into_iter().flatten().min().expect("something comes").max(now);
        if closed.is_some_and(|at| at <= now) {
            stored.push_back((now + put, std::mem::take(&mut gathered)));
            due = now + ms(100);
        }
        while stored.front().is_some_and(|(at, _)| *at <= now) {
            for sent in stored.pop_front().expect("looked at").1 {
                pipe.answered(&sent, now);
            }
        }
    }
    pipe.delivered() as f64 / time.as_secs_f64()
}

#[test]
fn acknowledgements_come_in_bursts_the_window_grows_by_them() {
    for (first_alone, put) in [(true, 1), (true, 10), (false, 1), (false, 10), (true, 50)] {
        let rate = gathers(first_alone, ms(put), ms(5000));
        // A broker that writes full objects one after another acknowledges 8 MiB in each `put`. The test requires half
        // of that rate.
        let least = (f64::from(8 << 20) * 1000.0 / put as f64).min(2000.0 * MB) / 2.0;
        assert!(rate > least, "{} MB/s where a PUT takes {put} ms, first alone: {first_alone}", rate / MB);
    }
}
