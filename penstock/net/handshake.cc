#include "penstock/net/handshake.h"

#include <algorithm>
#include <cstring>

#include "penstock/base/error.h"

namespace penstock::net {
namespace {

constexpr char kHandshake[] = "handshake";
constexpr char kMagic[8] = {'p', 'e', 'n', 's', 't', 'o', 'c', 'k'};
constexpr uint16_t kVersion = 1;
constexpr uint16_t kHasSecret = 1, kEncrypts = 2;
constexpr uint32_t kWelcome = 1, kRefused = 2;

void start_sodium() {
  static const bool started = sodium_init() >= 0;
  if (!started) throw Error(Code::kSystem, kHandshake, "libsodium does not start");
}

Error unlike(const std::string& text) { return Error(Code::kInvalidArgument, kHandshake, text); }

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
struct Handshake::Verdict {
  uint32_t verdict;
  uint32_t reserved;
  unsigned char proof[32];
};

void Handshake::check(const std::string& secret, bool encrypt) {
  if (!secret.empty() && secret.size() < kLeastSecret) {
    throw unlike("a secret of " + std::to_string(secret.size()) + " bytes; it takes " +
                 std::to_string(kLeastSecret) +
                 " or more that nobody guesses, as from: head -c 32 /dev/urandom | base64");
  }
  if (secret.empty() && encrypt) {
    throw unlike(
        "encryption takes a secret at both ends: give them the same one, as from: head -c 32 "
        "/dev/urandom | base64");
  }
}

Handshake::Handshake(Side side, const std::string& secret, bool encrypt, std::string peer)
    : side_(side), has_secret_(!secret.empty()), encrypt_(encrypt), peer_(std::move(peer)) {
  start_sodium();
  check(secret, encrypt);
  crypto_generichash(secret_.data(), Key::kBytes,
                     reinterpret_cast<const unsigned char*>(secret.data()), secret.size(),
                     reinterpret_cast<const unsigned char*>("penstock.net.secret.1"), 21);
  if (side_ == Side::kServer) {
    const ServerHello hello{own_hello()};
    say(hello);
    remember(&hello, sizeof(hello));
    state_ = State::kClientHello;
    want_ = sizeof(ClientHello);
  } else {
    state_ = State::kServerHello;
    want_ = sizeof(ServerHello);
  }
  static_assert(sizeof(Hello) == 48 && sizeof(ClientHello) == 80 && sizeof(Verdict) == 40);
  static_assert(sizeof(ClientHello) <= kMostBytes);
}

Handshake::~Handshake() = default;

Handshake::Hello Handshake::own_hello() const {
  Hello hello{};
  std::memcpy(hello.magic, kMagic, sizeof(kMagic));
  hello.version = kVersion;
  hello.flags = static_cast<uint16_t>((has_secret_ ? kHasSecret : 0) | (encrypt_ ? kEncrypts : 0));
  randombytes_buf(hello.nonce, sizeof(hello.nonce));
  return hello;
}

template <typename Message>
void Handshake::say(const Message& message) {
  std::memcpy(out_.data(), &message, sizeof(message));
  sent_ = 0;
  end_ = sizeof(message);
}

template <typename Message>
Message Handshake::heard() const {
  Message message;
  std::memcpy(&message, in_.data(), sizeof(message));
  return message;
}

void Handshake::remember(const void* bytes, size_t count) {
  std::memcpy(said_.data() + said_bytes_, bytes, count);
  said_bytes_ += count;
}

void Handshake::received(size_t bytes) {
  if (state_ == State::kTls) {
    tls_->received(bytes);
    return shake();
  }
  got_ += bytes;
  // What does not begin as it must is not waited for.
  const size_t begin = std::min(got_, sizeof(kMagic));
  if (state_ != State::kVerdict && std::memcmp(in_.data(), kMagic, begin) != 0) {
    throw Error(Code::kDataLoss, kHandshake, peer_ + " does not speak penstock's protocol");
  }
  if (got_ < want_) return;
  got_ = want_ = 0;
  switch (state_) {
    case State::kServerHello:
      return take_server_hello();
    case State::kClientHello:
      return take_client_hello();
    case State::kVerdict:
      return take_verdict();
    case State::kTls:
    case State::kComplete:
    case State::kRefused:
      break;
  }
}

void Handshake::take_server_hello() {
  const auto theirs = heard<ServerHello>();
  if (theirs.hello.version != kVersion || theirs.hello.reserved != 0) {
    throw unlike(peer_ + " speaks version " + std::to_string(theirs.hello.version) +
                 " of the protocol, and this end " + std::to_string(kVersion) +
                 ": both take the same version of penstock");
  }
  const Hello mine = own_hello();
  const uint16_t differs = theirs.hello.flags ^ mine.flags;
  if (differs & kHasSecret) {
    throw unlike(peer_ +
                 (has_secret_ ? " has no secret, and this end has one"
                              : " takes a secret, and this end has none") +
                 ": give both the same");
  }
  if (differs & kEncrypts) {
    throw unlike(
        peer_ +
        (encrypt_ ? " does not encrypt, and this end does" : " encrypts, and this end does not") +
        ": set encrypt at both, or at neither");
  }
  if (differs != 0) throw unlike(peer_ + " wants what this end does not know");
  remember(&theirs, sizeof(theirs));
  remember(&mine, sizeof(mine));
  ClientHello answer{mine, {}};
  prove("client", answer.proof);
  remember(answer.proof, sizeof(answer.proof));
  say(answer);
  state_ = State::kVerdict;
  want_ = sizeof(Verdict);
}

void Handshake::take_client_hello() {
  const auto theirs = heard<ClientHello>();
  remember(&theirs.hello, sizeof(theirs.hello));
  const uint16_t flags =
      static_cast<uint16_t>((has_secret_ ? kHasSecret : 0) | (encrypt_ ? kEncrypts : 0));
  // The proof comes first: nothing else of who does not have the secret is looked at.
  if (!proves("client", theirs.proof) || theirs.hello.version != kVersion ||
      theirs.hello.flags != flags || theirs.hello.reserved != 0) {
    return answer(false);
  }
  remember(theirs.proof, sizeof(theirs.proof));
  answer(true);
}

void Handshake::answer(bool welcome) {
  Verdict verdict{};
  verdict.verdict = welcome ? kWelcome : kRefused;
  if (welcome) {
    remember(&verdict, offsetof(Verdict, proof));
    prove("server", verdict.proof);
  }
  say(verdict);
  state_ = State::kRefused;
  if (welcome) known();
}

// Each knows that the other has the secret.
void Handshake::known() {
  state_ = State::kComplete;
  if (!encrypt_) return;
  Key key;
  prove("line", std::span<unsigned char, Key::kBytes>(key.data(), Key::kBytes));
  tls_ = std::make_unique<Tls>(side_ == Side::kServer ? Tls::Side::kServer : Tls::Side::kClient,
                               key, peer_);
  state_ = State::kTls;
  shake();
}

void Handshake::shake() {
  const bool complete = tls_->shake();
  sealed_.erase(sealed_.begin(), sealed_.begin() + static_cast<ptrdiff_t>(sealed_sent_));
  sealed_sent_ = 0;
  tls_->take_outgoing(sealed_);
  if (complete) state_ = State::kComplete;
}

void Handshake::take_verdict() {
  const auto verdict = heard<Verdict>();
  if (verdict.verdict == kRefused) {
    throw unlike(
        peer_ + " refused this end: " +
        (has_secret_ ? "its secret is another" : "it takes no connection without a secret"));
  }
  remember(&verdict, offsetof(Verdict, proof));
  if (verdict.verdict != kWelcome || verdict.reserved != 0 || !proves("server", verdict.proof)) {
    throw unlike(peer_ + " does not have the secret: it is not trusted");
  }
  known();
}

void Handshake::prove(const char* role, std::span<unsigned char, 32> proof) const {
  crypto_generichash_state state;
  crypto_generichash_init(&state, secret_.data(), Key::kBytes, proof.size());
  crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(role),
                            std::strlen(role));
  crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(said_.data()),
                            said_bytes_);
  crypto_generichash_final(&state, proof.data(), proof.size());
}

bool Handshake::proves(const char* role, std::span<const unsigned char, 32> proof) const {
  std::array<unsigned char, 32> expected;
  prove(role, expected);
  return sodium_memcmp(expected.data(), proof.data(), expected.size()) == 0;
}

}  // namespace penstock::net
