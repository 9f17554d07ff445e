#include "penstock/net/handshake.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "penstock/base/error.h"
#include "penstock/net/user_folder.h"

namespace penstock::net {
namespace {

constexpr char kHandshake[] = "handshake";
constexpr char kMagic[8] = {'p', 'e', 'n', 's', 't', 'o', 'c', 'k'};
constexpr uint16_t kVersion = 2;
// Flags of a hello. kEncrypt: the server requires encryption, the client encrypts.
constexpr uint16_t kHasSecret = 1, kEncrypt = 2, kNeverEncrypts = 4;
constexpr uint32_t kAccepted = 1, kRefused = 2;

void start_sodium() {
  static const bool started = sodium_init() >= 0;
  if (!started) throw Error(Code::kSystem, kHandshake, "cannot initialise libsodium");
}

Error mismatch(const std::string& text) { return Error(Code::kInvalidArgument, kHandshake, text); }

// False: interrupted, try again. Throws where the call failed for another reason.
bool would_block_or_throw(const std::string& peer) {
  if (errno == EAGAIN || errno == EWOULDBLOCK) return true;
  if (errno == EINTR) return false;
  throw Error(Code::kClosed, "handshake", peer + " disconnected: " + strerror(errno));
}

}  // namespace

struct Handshake::Hello {
  char magic[8];
  uint16_t version;
  uint16_t flags;
  uint32_t reserved;
  unsigned char nonce[32];
};
struct Handshake::ServerHello {
  Hello hello;
};
struct Handshake::ClientHello {
  Hello hello;
  unsigned char proof[32];
};
struct Handshake::ServerReply {
  uint32_t result;
  uint32_t reserved;
  unsigned char proof[32];
};

void Handshake::check(const std::string& secret) {
  if (!secret.empty() && secret.size() < kMinSecretBytes) {
    throw mismatch("the secret has " + std::to_string(secret.size()) +
                   " bytes; it needs at least " + std::to_string(kMinSecretBytes) +
                   " that cannot be guessed, as from: head -c 32 /dev/urandom | base64");
  }
}

Handshake::Options Handshake::options(const LinkOptions& link, bool same_host,
                                      const std::string& peer) {
  check(link.secret);
  if (link.secret.empty() && !same_host) {
    throw mismatch(peer +
                   " is on another host: both ends need the same secret; create one with: "
                   "head -c 32 /dev/urandom | base64");
  }
  return {.secret = link.secret.empty() ? host_secret() : link.secret,
          .is_host_secret = link.secret.empty(),
          .requires_encryption = link.encrypt.value_or(!same_host),
          .allows_encryption = link.encrypt.value_or(true)};
}

Handshake::Handshake(Side side, const Options& options, std::string peer)
    : side_(side),
      is_host_secret_(options.is_host_secret),
      requires_encryption_(options.requires_encryption),
      allows_encryption_(options.allows_encryption),
      peer_(std::move(peer)) {
  start_sodium();
  const std::string& secret = options.secret;
  check(secret);
  crypto_generichash(secret_.data(), Key::kBytes,
                     reinterpret_cast<const unsigned char*>(secret.data()), secret.size(),
                     reinterpret_cast<const unsigned char*>("penstock.net.secret.1"), 21);
  if (side_ == Side::kServer) {
    const ServerHello hello{own_hello()};
    queue(hello);
    append_to_transcript(&hello, sizeof(hello));
    state_ = State::kClientHello;
    expected_ = sizeof(ClientHello);
  } else {
    state_ = State::kServerHello;
    expected_ = sizeof(ServerHello);
  }
  static_assert(sizeof(Hello) == 48 && sizeof(ClientHello) == 80 && sizeof(ServerReply) == 40);
  static_assert(sizeof(ClientHello) <= kMaxMessageBytes);
}

Handshake::~Handshake() = default;

Handshake::Hello Handshake::own_hello() const {
  Hello hello{};
  std::memcpy(hello.magic, kMagic, sizeof(kMagic));
  hello.version = kVersion;
  hello.flags = static_cast<uint16_t>((is_host_secret_ ? 0 : kHasSecret) |
                                      (requires_encryption_ ? kEncrypt : 0) |
                                      (allows_encryption_ ? 0 : kNeverEncrypts));
  randombytes_buf(hello.nonce, sizeof(hello.nonce));
  return hello;
}

template <typename Message>
void Handshake::queue(const Message& message) {
  std::memcpy(out_.data(), &message, sizeof(message));
  sent_ = 0;
  end_ = sizeof(message);
}

template <typename Message>
Message Handshake::parse() const {
  Message message;
  std::memcpy(&message, in_.data(), sizeof(message));
  return message;
}

void Handshake::append_to_transcript(const void* bytes, size_t count) {
  std::memcpy(transcript_.data() + transcript_bytes_, bytes, count);
  transcript_bytes_ += count;
}

void Handshake::received(size_t bytes) {
  if (state_ == State::kTls) {
    tls_->received(bytes);
    return advance_tls();
  }
  got_ += bytes;
  // Fail at the first wrong byte instead of waiting for a whole message.
  const size_t begin = std::min(got_, sizeof(kMagic));
  if (state_ != State::kServerReply && std::memcmp(in_.data(), kMagic, begin) != 0) {
    throw Error(Code::kDataLoss, kHandshake, peer_ + " does not speak penstock's protocol");
  }
  if (got_ < expected_) return;
  got_ = expected_ = 0;
  switch (state_) {
    case State::kServerHello:
      return take_server_hello();
    case State::kClientHello:
      return take_client_hello();
    case State::kServerReply:
      return take_server_reply();
    case State::kTls:
    case State::kComplete:
    case State::kRefused:
      break;
  }
}

void Handshake::take_server_hello() {
  const auto theirs = parse<ServerHello>();
  if (theirs.hello.version != kVersion || theirs.hello.reserved != 0) {
    throw mismatch(peer_ + " speaks version " + std::to_string(theirs.hello.version) +
                   " of the protocol, this end version " + std::to_string(kVersion) +
                   ": use the same version of penstock at both ends");
  }
  Hello mine = own_hello();
  if ((theirs.hello.flags ^ mine.flags) & kHasSecret) {
    throw mismatch(peer_ +
                   (is_host_secret_ ? " requires a secret, and this end has none"
                                    : " has no secret, and this end has one") +
                   ": give both ends the same secret");
  }
  encrypt_ = decide_encryption(theirs.hello.flags);
  mine.flags = static_cast<uint16_t>((mine.flags & kHasSecret) | (encrypt_ ? kEncrypt : 0));
  append_to_transcript(&theirs, sizeof(theirs));
  append_to_transcript(&mine, sizeof(mine));
  ClientHello answer{mine, {}};
  compute_proof("client", answer.proof);
  append_to_transcript(answer.proof, sizeof(answer.proof));
  queue(answer);
  state_ = State::kServerReply;
  expected_ = sizeof(ServerReply);
}

// Whether the client encrypts.
bool Handshake::decide_encryption(uint16_t theirs) const {
  if (theirs & ~(kHasSecret | kEncrypt | kNeverEncrypts)) {
    throw mismatch(peer_ + " uses options that this end does not know");
  }
  const bool server_refuses = (theirs & kNeverEncrypts) && requires_encryption_;
  if (server_refuses || ((theirs & kEncrypt) && !allows_encryption_)) {
    throw mismatch(peer_ +
                   (server_refuses ? " does not encrypt, and this end does"
                                   : " encrypts, and this end does not") +
                   ": set encrypt at both ends to the same value, or at neither");
  }
  return (theirs & kEncrypt) || requires_encryption_;
}

void Handshake::take_client_hello() {
  const auto theirs = parse<ClientHello>();
  append_to_transcript(&theirs.hello, sizeof(theirs.hello));
  encrypt_ = (theirs.hello.flags & kEncrypt) != 0;
  const uint16_t flags =
      static_cast<uint16_t>((is_host_secret_ ? 0 : kHasSecret) | (encrypt_ ? kEncrypt : 0));
  // Verify the proof first: nothing else is read from an unauthenticated peer.
  if (!verify_proof("client", theirs.proof) || theirs.hello.version != kVersion ||
      theirs.hello.flags != flags || theirs.hello.reserved != 0 ||
      !(encrypt_ ? allows_encryption_ : !requires_encryption_)) {
    return reply(false);
  }
  append_to_transcript(theirs.proof, sizeof(theirs.proof));
  reply(true);
}

void Handshake::reply(bool accept) {
  ServerReply message{};
  message.result = accept ? kAccepted : kRefused;
  if (accept) {
    append_to_transcript(&message, offsetof(ServerReply, proof));
    compute_proof("server", message.proof);
  }
  queue(message);
  state_ = State::kRefused;
  if (accept) on_authenticated();
}

// Both ends have proved that they know the secret.
void Handshake::on_authenticated() {
  state_ = State::kComplete;
  if (!encrypt_) return;
  Key key;
  compute_proof("line", std::span<unsigned char, Key::kBytes>(key.data(), Key::kBytes));
  tls_ = std::make_unique<Tls>(side_ == Side::kServer ? Tls::Side::kServer : Tls::Side::kClient,
                               key, peer_);
  state_ = State::kTls;
  advance_tls();
}

void Handshake::advance_tls() {
  const bool complete = tls_->handshake();
  tls_out_.erase(tls_out_.begin(), tls_out_.begin() + static_cast<ptrdiff_t>(tls_sent_));
  tls_sent_ = 0;
  tls_->take_outgoing(tls_out_);
  if (complete) state_ = State::kComplete;
}

void Handshake::take_server_reply() {
  const auto reply = parse<ServerReply>();
  if (reply.result == kRefused) {
    throw mismatch(peer_ + " refused this end: " +
                   (is_host_secret_ ? "its folder for the secret of this user's processes is not " +
                                          user_folder() + "; give both ends the same secret"
                                    : "its secret is another"));
  }
  append_to_transcript(&reply, offsetof(ServerReply, proof));
  if (reply.result != kAccepted || reply.reserved != 0 || !verify_proof("server", reply.proof)) {
    throw mismatch(peer_ + " does not have the secret and is not trusted");
  }
  on_authenticated();
}

void Handshake::compute_proof(const char* role, std::span<unsigned char, 32> proof) const {
  crypto_generichash_state state;
  crypto_generichash_init(&state, secret_.data(), Key::kBytes, proof.size());
  crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(role),
                            std::strlen(role));
  crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(transcript_.data()),
                            transcript_bytes_);
  crypto_generichash_final(&state, proof.data(), proof.size());
}

bool Handshake::verify_proof(const char* role, std::span<const unsigned char, 32> proof) const {
  std::array<unsigned char, 32> expected;
  compute_proof(role, expected);
  return sodium_memcmp(expected.data(), proof.data(), expected.size()) == 0;
}

HandshakeStatus advance_handshake(int fd, Handshake& handshake, const std::string& peer) {
  for (;;) {
    if (const auto out = handshake.outgoing(); !out.empty()) {
      const ssize_t sent = send(fd, out.data(), out.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent >= 0) {
        handshake.sent(static_cast<size_t>(sent));
      } else if (would_block_or_throw(peer)) {
        return HandshakeStatus::kWantsWrite;
      }
    } else if (handshake.complete()) {
      return HandshakeStatus::kComplete;
    } else if (handshake.refused()) {
      return HandshakeStatus::kRefused;
    } else {
      const auto in = handshake.incoming();
      const ssize_t got = recv(fd, in.data(), in.size(), MSG_DONTWAIT);
      if (got > 0) {
        handshake.received(static_cast<size_t>(got));
      } else if (got == 0) {
        throw Error(Code::kClosed, "handshake", peer + " disconnected");
      } else if (would_block_or_throw(peer)) {
        return HandshakeStatus::kWantsRead;
      }
    }
  }
}

}  // namespace penstock::net
