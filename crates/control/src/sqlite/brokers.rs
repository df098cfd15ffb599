//! Reads and writes the rows of brokers and their addresses.

use std::collections::{BTreeMap, HashMap};

use fullbore_rules::replica::BrokerRegistration;
use fullbore_wire::{Text, Uuid};
use rusqlite::{Connection, Row, params};

use super::super::change::Change;
use super::super::node::{Endpoint, RegisteredBroker};

/// Reads all brokers, and adds a change for each of them to `changes`.
pub fn load(connection: &Connection, changes: &mut Vec<Change>) -> rusqlite::Result<()> {
    let mut endpoints = endpoints(connection)?;
    let mut query =
        connection.prepare("SELECT broker_id, epoch, fenced, shutting_down, folder, process, rack FROM brokers")?;
    let mut rows = query.query([])?;
    while let Some(row) = rows.next()? {
        let id = row.get(0)?;
        let endpoints = endpoints.remove(&id).unwrap_or_default();
        changes.push(Change::BrokerRegistered { id, node: broker(row, endpoints)? });
    }
    Ok(())
}

fn broker(row: &Row<'_>, endpoints: BTreeMap<String, Endpoint>) -> rusqlite::Result<RegisteredBroker> {
    // A standalone broker never reports a full disk, because no other broker could lead its partitions.
    let (epoch, is_fenced, is_shutting_down) = (row.get(1)?, row.get(2)?, row.get(3)?);
    let registration = BrokerRegistration { epoch, is_fenced, is_shutting_down, is_full: false };
    let rack: Option<String> = row.get(6)?;
    Ok(RegisteredBroker {
        registration,
        directory: Uuid(row.get(4)?),
        process: Uuid(row.get(5)?),
        rack: rack.as_deref().map(Text::from),
        // A standalone broker always serves diskless topics.
        serves_diskless: true,
        endpoints,
    })
}

fn endpoints(connection: &Connection) -> rusqlite::Result<HashMap<i32, BTreeMap<String, Endpoint>>> {
    let mut query = connection.prepare("SELECT broker_id, listener, host, port FROM broker_endpoints")?;
    let mut rows = query.query([])?;
    let mut endpoints: HashMap<i32, BTreeMap<String, Endpoint>> = HashMap::new();
    while let Some(row) = rows.next()? {
        let host: String = row.get(2)?;
        let endpoint = Endpoint { host: Text::from(host.as_str()), port: row.get(3)? };
        endpoints.entry(row.get(0)?).or_default().insert(row.get(1)?, endpoint);
    }
    Ok(endpoints)
}

/// Replaces the rows of a broker.
pub fn put(connection: &Connection, id: i32, node: &RegisteredBroker) -> rusqlite::Result<()> {
    let forget = "DELETE FROM broker_endpoints WHERE broker_id = ?1";
    connection.prepare_cached(forget)?.execute(params![id])?;
    let of = node.registration;
    let insert = "INSERT OR REPLACE INTO brokers (broker_id, epoch, folder, process, fenced, shutting_down, rack)
                  VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
    let rack = node.rack.as_ref().map(Text::as_str);
    let row = params![id, of.epoch, node.directory.0, node.process.0, of.is_fenced, of.is_shutting_down, rack];
    connection.prepare_cached(insert)?.execute(row)?;
    let insert = "INSERT INTO broker_endpoints (broker_id, listener, host, port) VALUES (?1, ?2, ?3, ?4)";
    let mut insert = connection.prepare_cached(insert)?;
    node.endpoints
        .iter()
        .try_for_each(|(listener, at)| insert.execute(params![id, listener, at.host.as_str(), at.port]).map(drop))
}
