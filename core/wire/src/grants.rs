//! Sends of a broker that asks everybody who they are: what was allowed before, and signatures.
//!
//! A grant says that a user may send to a topic from an address. It is put here by whoever judges
//! requests, for one that it has allowed, and taken away before anything changes that could decide
//! otherwise. What has no grant, or another signature, is somebody else's to judge.
//!
//! What is signed is the value of every field but the signature, in the order of the names, and the
//! body behind them; the signature is HMAC-SHA1 in base64.

use std::collections::{HashMap, HashSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha1::Sha1;

use crate::json::{Text, Value, unescape};

const ACCESS_KEY: &[u8] = b"AccessKey";
const SIGNATURE: &[u8] = b"Signature";
const MAC_BYTES: usize = 20;
/// One more than the signature has: what is longer is none.
const DECODED_BYTES: usize = 21;
/// Most grants; with one more all are taken away, and put here again as they are asked for.
const GRANTS_MAX: usize = 65_536;

/// The fields of one request.
#[derive(Debug, Default)]
pub struct SignedFields<'a> {
    fields: Vec<(&'a [u8], Text<'a>)>,
}

impl<'a> SignedFields<'a> {
    /// Adds a field; none where its value is no text.
    pub(crate) fn add(&mut self, name: &'a [u8], value: Value<'a>) -> Option<()> {
        let Value::Text(text) = value else {
            return None;
        };
        self.fields.push((name, text));
        Some(())
    }

    fn find(&self, name: &[u8]) -> Option<Text<'a>> {
        let mut found = self.fields.iter().filter(|(field, _)| *field == name);
        found.next().map(|(_, text)| *text)
    }

    /// Appends what is signed of them; none where a name comes twice.
    fn put_content(&mut self, out: &mut Vec<u8>) -> Option<()> {
        self.fields.sort_unstable_by_key(|(name, _)| *name);
        let mut before: Option<&[u8]> = None;
        for (name, text) in &self.fields {
            if before.replace(name) == Some(name) {
                return None;
            }
            if *name != SIGNATURE {
                unescape(*text, out)?;
            }
        }
        Some(())
    }
}

/// One user at one address.
struct Grant {
    keys: Vec<Hmac<Sha1>>,
    topics: HashSet<Box<[u8]>>,
}

/// All grants of a broker.
#[derive(Default)]
pub struct Grants {
    by_user: HashMap<Box<[u8]>, Grant>,
    count: usize,
    key: Vec<u8>,
    content: Vec<u8>,
}

impl std::fmt::Debug for Grants {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // No keys.
        out.debug_struct("Grants")
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

impl Grants {
    /// Lets a user send to a topic from an address, of 4 or 16 bytes, with one of its secrets.
    ///
    /// The secrets are those of its first grant at this address: `clear` goes before any change.
    pub fn allow(&mut self, user: &[u8], secrets: &[Vec<u8>], address: &[u8], topic: &[u8]) {
        if self.count >= GRANTS_MAX {
            self.clear();
        }
        put_key(&mut self.key, user, address);
        let grant = self
            .by_user
            .entry(self.key.as_slice().into())
            .or_insert_with(|| Grant {
                keys: secrets.iter().filter_map(|secret| key(secret)).collect(),
                topics: HashSet::new(),
            });
        self.count += usize::from(grant.topics.insert(topic.into()));
    }

    /// Takes away what a user may do from an address.
    pub fn withdraw(&mut self, user: &[u8], address: &[u8]) {
        put_key(&mut self.key, user, address);
        if let Some(grant) = self.by_user.remove(self.key.as_slice()) {
            self.count -= grant.topics.len();
        }
    }

    /// Takes everything away.
    pub fn clear(&mut self) {
        self.by_user.clear();
        self.count = 0;
    }

    /// Tells whether a request to send to a topic has a grant and is signed by its user.
    ///
    /// None is a no as well: it cannot be told.
    pub fn allows(
        &mut self,
        fields: &mut SignedFields<'_>,
        body: &[u8],
        address: &[u8],
        topic: &[u8],
    ) -> Option<()> {
        self.content.clear();
        unescape(fields.find(ACCESS_KEY)?, &mut self.content)?;
        put_key(&mut self.key, &self.content, address);
        let grant = self.by_user.get(self.key.as_slice())?;
        if !grant.topics.contains(topic) {
            return None;
        }
        self.content.clear();
        unescape(fields.find(SIGNATURE)?, &mut self.content)?;
        let mut decoded = [0; DECODED_BYTES];
        let size = STANDARD.decode_slice(&self.content, &mut decoded).ok()?;
        let signature = decoded.get(..size).filter(|_| size == MAC_BYTES)?;
        self.content.clear();
        fields.put_content(&mut self.content)?;
        let is_signed = grant.keys.iter().any(|key| {
            let mut mac = key.clone();
            mac.update(&self.content);
            mac.update(body);
            mac.verify_slice(signature).is_ok()
        });
        is_signed.then_some(())
    }
}

fn key(secret: &[u8]) -> Option<Hmac<Sha1>> {
    Hmac::new_from_slice(secret).ok()
}

/// Addresses have two lengths, so where one ends is plain from the first byte.
fn put_key(out: &mut Vec<u8>, user: &[u8], address: &[u8]) {
    out.clear();
    out.push(u8::from(address.len() > 4));
    out.extend_from_slice(address);
    out.extend_from_slice(user);
}
