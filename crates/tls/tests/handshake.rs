//! Handshakes between a client and a broker in one process: those that succeed, and the error text of each failure.

use bytes::BytesMut;
use fullbore_tests::pki::{Authority, Issued, self_signed};
use fullbore_tls::{Acceptor, BlockingStream, ClientAuth, Connector, Settings, Stream};
use std::io::{self, IoSlice, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

fn settings(pairs: &[(&str, &str)]) -> Settings {
    let mut settings = Settings::default();
    pairs.iter().for_each(|(key, value)| settings.set(key, value).expect(key));
    settings.check().expect("no contradiction");
    settings
}

/// Returns settings for the broker, with its own key and chain.
fn of_broker(issued: &Issued, more: &[(&str, &str)]) -> Settings {
    let own = [("ssl.keystore.key", issued.key.as_str()), ("ssl.keystore.certificate.chain", issued.chain.as_str())];
    settings(&[&own, more].concat())
}

/// Returns settings for a client that trusts `authority`.
fn of_client(authority: &str, more: &[(&str, &str)]) -> Settings {
    settings(&[&[("ssl.truststore.certificates", authority)], more].concat())
}

fn identity(issued: &Issued) -> [(&str, &str); 2] {
    [("ssl.keystore.key", &issued.key), ("ssl.keystore.certificate.chain", &issued.chain)]
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has free ports");
    let addr = listener.local_addr().expect("bound");
    (listener, addr)
}

/// Accepts one connection, and echoes its bytes until the client closes it.
async fn echo(listener: TcpListener, acceptor: Acceptor) -> io::Result<()> {
    let (socket, _) = listener.accept().await?;
    let stream = Stream::accept(socket, &acceptor).await?;
    let mut plain = BytesMut::new();
    while stream.read_buf(&mut plain).await? > 0 {
        let (head, tail) = plain.split_at(plain.len() / 2);
        stream.write(&mut [IoSlice::new(head), IoSlice::new(&[]), IoSlice::new(tail)]).await?;
        stream.flush().await?;
        plain.clear();
    }
    Ok(())
}

/// Does a handshake, and then lets the client send one byte and read its echo. Returns the result of each side.
async fn shake(
    broker: Settings,
    auth: ClientAuth,
    client: Settings,
    check_name: bool,
) -> (Result<(), String>, Result<(), String>) {
    let acceptor = Acceptor::load(&broker, auth).expect("the broker's material");
    let connector = Connector::load(&client, check_name).expect("the client's material");
    let (listener, addr) = listen().await;
    let serving = tokio::spawn(echo(listener, acceptor));
    let requesting = async {
        let socket = TcpStream::connect(addr).await?;
        let stream = Stream::connect(socket, &connector, &addr.to_string()).await?;
        stream.write(&mut [IoSlice::new(b"x")]).await?;
        stream.flush().await?;
        let mut plain = BytesMut::new();
        match stream.read_buf(&mut plain).await? {
            0 => Err(io::Error::other("closed")),
            _ => {
                assert_eq!(plain[..], b"x"[..]);
                Ok(())
            }
        }
    };
    let requested = requesting.await.map_err(|error: io::Error| error.to_string());
    let served = serving.await.expect("no panic").map_err(|error| error.to_string());
    (served, requested)
}

const NAMES: [&str; 2] = ["127.0.0.1", "localhost"];

#[tokio::test]
async fn megabytes_go_both_ways_in_each_version() {
    let authority = Authority::new("ca");
    let issued = authority.broker(&NAMES);
    for version in ["TLSv1.2", "TLSv1.3"] {
        let acceptor = Acceptor::load(&of_broker(&issued, &[("ssl.enabled.protocols", version)]), ClientAuth::None);
        let connector = Connector::load(&of_client(&authority.pem(), &[]), true).expect("the client's material");
        let (listener, addr) = listen().await;
        let serving = tokio::spawn(echo(listener, acceptor.expect("the broker's material")));
        let socket = TcpStream::connect(addr).await.expect("it listens");
        let stream = Stream::connect(socket, &connector, &addr.to_string()).await.expect("trusted");
        let sent: Vec<u8> = (0..5_000_000_u32).map(|n| (n % 251) as u8).collect();
        let writing = async {
            let (small, large) = sent.split_at(10);
            stream.write(&mut [IoSlice::new(small), IoSlice::new(large)]).await?;
            stream.flush().await
        };
        let reading = async {
            let mut plain = BytesMut::new();
            while plain.len() < sent.len() && stream.read_buf(&mut plain).await? > 0 {}
            io::Result::Ok(plain)
        };
        let ((), plain) = tokio::try_join!(writing, reading).expect("both ways");
        assert!(plain[..] == sent[..], "{version}");
        drop(stream);
        serving.await.expect("no panic").expect("an orderly end");
    }
}

#[tokio::test]
async fn a_blocking_client_sends_and_receives_megabytes() {
    let authority = Authority::new("ca");
    let acceptor = Acceptor::load(&of_broker(&authority.broker(&NAMES), &[]), ClientAuth::None).expect("material");
    let (listener, addr) = listen().await;
    let serving = tokio::spawn(echo(listener, acceptor));
    let client = of_client(&authority.pem(), &[]);
    let requesting = tokio::task::spawn_blocking(move || {
        let connector = Connector::load(&client, true).expect("the client's material");
        let socket = std::net::TcpStream::connect(addr)?;
        let mut stream = BlockingStream::connect(
            socket,
            &connector,
            &format!("localhost:{}", addr.port()),
            Duration::from_secs(30),
        )?;
        let sent = vec![7; 100_000];
        stream.write_all(&sent)?;
        let mut found = vec![0; sent.len()];
        stream.read_exact(&mut found)?;
        assert!(found == sent);
        io::Result::Ok(())
    });
    requesting.await.expect("no panic").expect("trusted");
    serving.await.expect("no panic").expect("an orderly end");
}

#[tokio::test]
async fn a_client_reports_the_fault_of_the_brokers_certificate() {
    let (authority, other) = (Authority::new("ca"), Authority::new("another ca"));
    let trusts = |who: &Authority| of_client(&who.pem(), &[]);
    let broker = |issued: Issued| of_broker(&issued, &[]);
    for (broker, client, expected) in [
        (broker(authority.broker(&NAMES)), trusts(&other), "unknown CA"),
        (broker(authority.broker(&["kafka.example"])), trusts(&authority), "not for 127.0.0.1"),
        (broker(authority.broker(&["kafka.example"])), trusts(&authority), "kafka.example"),
        (broker(authority.expired_broker(&NAMES)), trusts(&authority), "the broker's certificate has expired"),
        (
            of_broker(&authority.broker(&NAMES), &[("ssl.enabled.protocols", "TLSv1.2")]),
            of_client(&authority.pem(), &[("ssl.enabled.protocols", "TLSv1.3")]),
            "ssl.enabled.protocols",
        ),
        (
            of_broker(&authority.broker(&NAMES), &[("ssl.cipher.suites", "TLS_AES_128_GCM_SHA256")]),
            of_client(&authority.pem(), &[("ssl.cipher.suites", "TLS_AES_256_GCM_SHA384")]),
            "cipher suite",
        ),
    ] {
        let (served, requested) = shake(broker, ClientAuth::None, client, true).await;
        let requested = requested.expect_err(expected);
        assert!(requested.contains(expected), "{requested}");
        served.expect_err("told by an alert");
    }
}

#[tokio::test]
async fn a_client_distrusts_the_broker_and_the_broker_reports_the_alert() {
    let (authority, other) = (Authority::new("ca"), Authority::new("another ca"));
    let broker = of_broker(&authority.broker(&NAMES), &[]);
    let (served, _) = shake(broker, ClientAuth::None, of_client(&other.pem(), &[]), true).await;
    assert_eq!(
        served,
        Err("TLS: the client does not trust the authority of this broker's certificate (unknown CA)".to_owned())
    );
}

#[tokio::test]
async fn the_check_of_host_names_off_still_checks_authority_and_dates() {
    let authority = Authority::new("ca");
    let broker = || of_broker(&authority.broker(&["kafka.example"]), &[]);
    let (_, requested) = shake(broker(), ClientAuth::None, of_client(&authority.pem(), &[]), false).await;
    requested.expect("the name is not looked at");
    let (_, requested) = shake(broker(), ClientAuth::None, of_client(&Authority::new("other").pem(), &[]), false).await;
    assert!(requested.expect_err("the authority still is").contains("unknown CA"));
    let expired = of_broker(&authority.expired_broker(&["kafka.example"]), &[]);
    let (_, requested) = shake(expired, ClientAuth::None, of_client(&authority.pem(), &[]), false).await;
    assert!(requested.expect_err("so are the dates").contains("has expired"));
}

#[tokio::test]
async fn a_self_signed_certificate_is_trusted_where_it_is_in_the_truststore() {
    let own = self_signed(&NAMES, false);
    let (_, requested) = shake(of_broker(&own, &[]), ClientAuth::None, of_client(&own.chain, &[]), true).await;
    requested.expect("it is in the truststore");
    let stranger = self_signed(&NAMES, false);
    let (_, requested) = shake(of_broker(&stranger, &[]), ClientAuth::None, of_client(&own.chain, &[]), true).await;
    assert!(requested.is_err(), "another is not, by the same name");
    let elsewhere = self_signed(&["kafka.example"], false);
    let (_, requested) =
        shake(of_broker(&elsewhere, &[]), ClientAuth::None, of_client(&elsewhere.chain, &[]), true).await;
    assert!(requested.expect_err("its name counts").contains("host name mismatch"));
    let old = self_signed(&NAMES, true);
    let (_, requested) = shake(of_broker(&old, &[]), ClientAuth::None, of_client(&old.chain, &[]), true).await;
    assert!(requested.expect_err("so do its dates").contains("expired"));
}

#[tokio::test]
async fn client_certificates_are_checked_as_ssl_client_auth_demands() {
    let (authority, other) = (Authority::new("ca"), Authority::new("another ca"));
    let (good, bad) = (authority.client("good"), other.client("bad"));
    for version in ["TLSv1.2", "TLSv1.3"] {
        let pem = authority.pem();
        let broker = || {
            let more = [("ssl.truststore.certificates", pem.as_str()), ("ssl.enabled.protocols", version)];
            of_broker(&authority.broker(&NAMES), &more)
        };
        let with = |issued: &Issued| of_client(&pem, &identity(issued));
        for auth in [ClientAuth::Requested, ClientAuth::Required] {
            let (served, requested) = shake(broker(), auth, with(&good), true).await;
            requested.expect("a good certificate");
            served.expect("a good certificate");
            let (served, requested) = shake(broker(), auth, with(&bad), true).await;
            let served = served.expect_err("of another authority");
            assert!(
                served.contains("the client's certificate was issued by an authority that is not trusted"),
                "{served}"
            );
            let requested = requested.expect_err("of another authority");
            assert!(
                requested.contains("does not trust the authority of this client's certificate"),
                "{version}: {requested}"
            );
        }
        let (_, requested) = shake(broker(), ClientAuth::Requested, of_client(&pem, &[]), true).await;
        requested.expect("none is needed");
        let (served, requested) = shake(broker(), ClientAuth::Required, of_client(&pem, &[]), true).await;
        assert_eq!(served, Err("TLS: the client showed no certificate, and ssl.client.auth=required".to_owned()));
        let requested = requested.expect_err("none is shown");
        assert!(requested.contains("requires a client certificate"), "{version}: {requested}");
    }
}

#[tokio::test]
async fn a_self_signed_certificate_of_a_client_is_trusted_where_it_is_in_the_truststore() {
    let authority = Authority::new("ca");
    let (own, stranger, old) = (self_signed(&[], false), self_signed(&[], false), self_signed(&[], true));
    for version in ["TLSv1.2", "TLSv1.3"] {
        let shake_with = |trusted: &Issued, shown: &Issued| {
            let more = [("ssl.truststore.certificates", trusted.chain.as_str()), ("ssl.enabled.protocols", version)];
            let broker = of_broker(&authority.broker(&NAMES), &more);
            shake(broker, ClientAuth::Required, of_client(&authority.pem(), &identity(shown)), true)
        };
        let (served, requested) = shake_with(&own, &own).await;
        assert_eq!((served, requested), (Ok(()), Ok(())), "{version}");
        let (served, requested) = shake_with(&own, &stranger).await;
        let served = served.expect_err("another is not, by the same name");
        assert!(served.contains("the client's certificate"), "{version}: {served}");
        requested.expect_err("so it is told");
        let (served, _) = shake_with(&old, &old).await;
        assert_eq!(served, Err("TLS: the client's certificate has expired".to_owned()), "{version}");
    }
}

#[tokio::test]
async fn a_client_that_verifies_nothing_shows_its_own_certificate() {
    let authority = Authority::new("ca");
    let more = [("ssl.truststore.certificates", &*authority.pem())];
    let broker = of_broker(&authority.broker(&NAMES), &more);
    let acceptor = Acceptor::load(&broker, ClientAuth::Required).expect("the broker's material");
    let own = authority.client("own");
    let connector = Connector::unverified(&settings(&identity(&own))).expect("the client's material");
    let (listener, addr) = listen().await;
    let serving = tokio::spawn(echo(listener, acceptor));
    let socket = TcpStream::connect(addr).await.expect("it listens");
    drop(Stream::connect(socket, &connector, &addr.to_string()).await.expect("begun"));
    let served = serving.await.expect("no panic");
    assert!(!matches!(&served, Err(error) if error.to_string().contains("certificate")), "{served:?}");
}

#[tokio::test]
async fn a_plaintext_client_is_recognized_and_gets_no_alert() {
    let authority = Authority::new("ca");
    let acceptor = Acceptor::load(&of_broker(&authority.broker(&NAMES), &[]), ClientAuth::None).expect("material");
    let (listener, addr) = listen().await;
    let serving = tokio::spawn(echo(listener, acceptor));
    let mut plain = TcpStream::connect(addr).await.expect("it listens");
    plain.write_all(&[0, 0, 0, 9, 0, 18, 0, 0, 0, 0, 0, 1, 0xff, 0xff]).await.expect("it reads");
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer).await;
    assert!(answer.is_empty(), "an alert is no answer to it");
    let error = serving.await.expect("no panic").expect_err("no TLS");
    assert_eq!(error.to_string(), "the client does not speak TLS: a plaintext client on an SSL listener");
}

#[tokio::test]
async fn a_plaintext_broker_is_recognized() {
    let authority = Authority::new("ca");
    let connector = Connector::load(&of_client(&authority.pem(), &[]), true).expect("the client's material");
    for (answer, expected) in [(&b""[..], "is it an SSL listener?"), (&[0, 0, 0, 10, 0, 0][..], "does not speak TLS")] {
        let (listener, addr) = listen().await;
        let serving = tokio::spawn(async move {
            let (mut socket, _) = listener.accept().await.expect("a client");
            socket.read_u8().await.expect("its first byte");
            socket.write_all(answer).await.expect("it reads");
            socket.shutdown().await.expect("open");
            // Reads until the client closes the connection. Closing it earlier would reset it.
            let _ = socket.read_to_end(&mut Vec::new()).await;
        });
        let socket = TcpStream::connect(addr).await.expect("it listens");
        let error = Stream::connect(socket, &connector, &addr.to_string()).await.err().expect("no TLS").to_string();
        assert!(error.contains(expected), "{error}");
        serving.await.expect("no panic");
    }
}
