#include "penstock/net/handshake.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "penstock/base/error.h"
#include "tests/cpp/net/line.h"

namespace penstock::net {
namespace {

using testing::kSecret;

using Side = Handshake::Side;
using Bytes = std::vector<std::byte>;

// The state of one end.
enum class End { kUnderWay, kComplete, kRefused, kInvalidArgument, kDataLoss };

// Of two ends on one host. "": no secret was given.
Handshake::Options options_of(const std::string& secret, std::optional<bool> encrypt) {
  return {.secret = secret.empty() ? "a host's secret of tests" : secret,
          .is_host_secret = secret.empty(),
          .requires_encryption = encrypt.value_or(false),
          .allows_encryption = encrypt.value_or(true)};
}

struct Party {
  Party(Side side, const std::string& secret, std::optional<bool> encrypt = {})
      : handshake(side, options_of(secret, encrypt), side == Side::kServer ? "client" : "server") {}

  // Takes received bytes, all requested ones at once or one by one.
  void take(std::span<const std::byte> bytes, bool one_by_one = false) {
    while (!bytes.empty() && end() == End::kUnderWay) {
      const auto into = handshake.incoming();
      if (into.empty()) return;
      const size_t count = one_by_one ? 1 : std::min(bytes.size(), into.size());
      std::ranges::copy(bytes.first(count), into.begin());
      try {
        handshake.received(count);
      } catch (const Error& error) {
        failed = error.code() == Code::kDataLoss ? End::kDataLoss : End::kInvalidArgument;
        EXPECT_TRUE(error.code() == Code::kDataLoss || error.code() == Code::kInvalidArgument);
        text = error.what();
      }
      bytes = bytes.subspan(count);
    }
  }

  Bytes say() {
    const auto out = handshake.outgoing();
    Bytes said(out.begin(), out.end());
    handshake.sent(said.size());
    return said;
  }

  End end() const {
    if (failed != End::kUnderWay) return failed;
    if (handshake.complete()) return End::kComplete;
    return handshake.refused() ? End::kRefused : End::kUnderWay;
  }

  Handshake handshake;
  End failed = End::kUnderWay;
  std::string text;
};

// Runs both ends until neither sends anything. `change` may modify each message; numbers begin at
// 0.
using Tampering = std::function<void(int, Bytes&)>;
void talk(Party& server, Party& client, const Tampering& change = {}, bool one_by_one = false) {
  int number = 0;
  for (Party* from = &server;; from = from == &server ? &client : &server) {
    if (from->failed != End::kUnderWay) return;
    Bytes said = from->say();
    if (said.empty()) return;
    if (change) change(number, said);
    ++number;
    (from == &server ? client : server).take(said, one_by_one);
  }
}

Bytes encrypted_by(Tls& tls, const Bytes& plain) {
  Bytes encrypted;
  tls.encrypt(plain);
  tls.take_outgoing(encrypted);
  return encrypted;
}

void comes(Tls& tls, const Bytes& bytes) {
  const auto buffer = tls.receive_buffer();
  ASSERT_LE(bytes.size(), buffer.size());
  std::ranges::copy(bytes, buffer.begin());
  tls.received(bytes.size());
}

TEST(Handshake, the_same_secret_at_both_ends_completes) {
  for (const bool encrypt : {false, true}) {
    for (const bool one_by_one : {false, true}) {
      Party server(Side::kServer, kSecret, encrypt), client(Side::kClient, kSecret, encrypt);
      talk(server, client, {}, one_by_one);
      EXPECT_EQ(server.end(), End::kComplete);
      EXPECT_EQ(client.end(), End::kComplete);
      auto a = server.handshake.take_tls(), b = client.handshake.take_tls();
      ASSERT_EQ(a != nullptr, encrypt);
      if (!encrypt) continue;
      const Bytes plain(100, std::byte{7});
      Bytes decrypted(plain.size() + 1), encrypted;
      for (auto [from, to] : {std::pair(a.get(), b.get()), std::pair(b.get(), a.get())}) {
        encrypted = encrypted_by(*from, plain);
        EXPECT_EQ(std::ranges::search(encrypted, Bytes(8, std::byte{7})).size(), 0u);
        comes(*to, encrypted);
        EXPECT_TRUE(to->pending());
        EXPECT_EQ(to->read(decrypted), plain.size());
        EXPECT_TRUE(std::ranges::equal(plain, std::span(decrypted).first(plain.size())));
        EXPECT_EQ(to->read(decrypted), 0u);
        EXPECT_FALSE(to->pending());
      }
      comes(*a, encrypted);
      EXPECT_THROW(a->read(decrypted), Error) << "a second time";
    }
  }
}

TEST(Handshake, without_a_secret_of_their_own_both_ends_have_the_hosts) {
  Party server(Side::kServer, ""), client(Side::kClient, "");
  talk(server, client);
  EXPECT_EQ(server.end(), End::kComplete);
  EXPECT_EQ(client.end(), End::kComplete);
}

TEST(Handshake, another_secret_is_refused_and_the_servers_proof_is_not_shown) {
  Party server(Side::kServer, kSecret), client(Side::kClient, "another secret of tests");
  Bytes verdict;
  talk(server, client, [&](int number, Bytes& said) {
    if (number == 2) verdict = said;
  });
  EXPECT_EQ(server.end(), End::kRefused);
  EXPECT_EQ(client.end(), End::kInvalidArgument);
  EXPECT_NE(client.text.find("secret is another"), std::string::npos) << client.text;
  ASSERT_EQ(verdict.size(), 40u);
  EXPECT_TRUE(std::all_of(verdict.begin() + 8, verdict.end(),
                          [](std::byte each) { return each == std::byte{0}; }));
}

// An attacker that listens at the server's address accepts every client.
TEST(Handshake, a_server_without_the_secret_is_not_trusted) {
  Party server(Side::kServer, "what the enemy guesses"), client(Side::kClient, kSecret);
  talk(server, client, [](int number, Bytes& said) {
    if (number == 2) said[0] = std::byte{1};
  });
  EXPECT_EQ(client.end(), End::kInvalidArgument);
  EXPECT_NE(client.text.find("does not have the secret"), std::string::npos) << client.text;
}

TEST(Handshake, ends_that_want_different_things_say_which) {
  struct Case {
    std::string server, client;
    bool server_encrypts, client_encrypts;
    const char* says;
  };
  for (const Case& each : {Case{kSecret, "", false, false, "requires a secret"},
                           Case{"", kSecret, false, false, "has no secret"},
                           Case{kSecret, kSecret, true, false, " encrypts, and"},
                           Case{kSecret, kSecret, false, true, "does not encrypt"}}) {
    Party server(Side::kServer, each.server, each.server_encrypts);
    Party client(Side::kClient, each.client, each.client_encrypts);
    talk(server, client);
    EXPECT_EQ(client.end(), End::kInvalidArgument);
    EXPECT_NE(client.text.find(each.says), std::string::npos) << client.text;
    EXPECT_EQ(server.end(), End::kUnderWay);
  }
}

TEST(Handshake, one_end_that_asks_for_encryption_is_enough) {
  for (const bool server_asks : {false, true}) {
    const std::optional<bool> asks = true, agrees;
    Party server(Side::kServer, kSecret, server_asks ? asks : agrees);
    Party client(Side::kClient, kSecret, server_asks ? agrees : asks);
    talk(server, client);
    ASSERT_EQ(server.end(), End::kComplete);
    ASSERT_EQ(client.end(), End::kComplete);
    EXPECT_TRUE(server.handshake.take_tls());
    EXPECT_TRUE(client.handshake.take_tls());
  }
}

TEST(Handshake, links_to_other_hosts_are_encrypted_unless_told_otherwise) {
  for (const bool same_host : {true, false}) {
    LinkOptions link;
    link.secret = kSecret;
    EXPECT_EQ(Handshake::options(link, same_host, "").requires_encryption, !same_host);
    EXPECT_TRUE(Handshake::options(link, same_host, "").allows_encryption);
    link.encrypt = true;
    EXPECT_TRUE(Handshake::options(link, same_host, "").requires_encryption);
    link.encrypt = false;
    EXPECT_FALSE(Handshake::options(link, same_host, "").requires_encryption);
    EXPECT_FALSE(Handshake::options(link, same_host, "").allows_encryption);
  }
  EXPECT_THROW(Handshake::options({}, false, "elsewhere"), Error);  // no secret
}

TEST(Handshake, no_changed_byte_lets_anybody_in) {
  for (const bool encrypt : {false, true}) {
    size_t changed = 0;
    for (int message = 0; message < 3; ++message) {
      for (size_t at = 0, size = 1; at < size; ++at, ++changed) {
        Party server(Side::kServer, kSecret, encrypt), client(Side::kClient, kSecret, encrypt);
        talk(server, client, [&](int number, Bytes& said) {
          if (number != message) return;
          size = said.size();
          said[at] ^= static_cast<std::byte>(1 << at % 8);
        });
        const bool client_in = client.end() == End::kComplete;
        EXPECT_FALSE(client_in) << "message " << message << ", byte " << at;
        // Only the client can detect a change of the last message.
        EXPECT_TRUE(message == 2 || server.end() != End::kComplete)
            << "message " << message << ", byte " << at;
      }
    }
    EXPECT_EQ(changed, 48u + 80 + 40);
  }
}

// TLS checks its own messages, except for a record's version.
TEST(Handshake, nobody_speaks_over_a_line_whose_tls_was_changed) {
  for (int message = 3; message < 6; ++message) {
    for (size_t at = 0, size = 1; at < size; ++at) {
      Party server(Side::kServer, kSecret, true), client(Side::kClient, kSecret, true);
      talk(server, client, [&](int number, Bytes& said) {
        if (number != message) return;
        size = said.size();
        said[at] ^= static_cast<std::byte>(1 << at % 8);
      });
      ASSERT_GT(size, 1u);
      if (server.end() != End::kComplete) continue;
      EXPECT_EQ(client.end(), End::kComplete);
      const auto a = server.handshake.take_tls(), b = client.handshake.take_tls();
      const Bytes plain(100, std::byte{7});
      Bytes decrypted(plain.size());
      comes(*b, encrypted_by(*a, plain));
      EXPECT_EQ(b->read(decrypted), plain.size());
      EXPECT_EQ(decrypted, plain);
    }
  }
}

TEST(Tls, an_end_without_the_key_does_not_come_in) {
  Key right, wrong;
  right.data()[0] = 1;
  Tls server(Tls::Side::kServer, right, "client"), client(Tls::Side::kClient, wrong, "server");
  Bytes said;
  EXPECT_FALSE(client.handshake());
  client.take_outgoing(said);
  comes(server, said);
  EXPECT_THROW(server.handshake(), Error);
}

TEST(Tls, more_than_one_key_may_seal_opens_as_well) {
  Key key;
  Tls server(Tls::Side::kServer, key, "client"), client(Tls::Side::kClient, key, "server");
  const auto pass = [](Tls& from, Tls& to) {
    Bytes said;
    from.take_outgoing(said);
    comes(to, said);
  };
  EXPECT_FALSE(client.handshake());
  pass(client, server);
  EXPECT_FALSE(server.handshake());
  pass(server, client);
  EXPECT_TRUE(client.handshake());
  pass(client, server);
  EXPECT_TRUE(server.handshake());
  client.renew_key();
  Bytes decrypted(5);
  for (const char* text : {"first", "again"}) {
    const auto plain = std::as_bytes(std::span(text, 5));
    comes(server, encrypted_by(client, Bytes(plain.begin(), plain.end())));
    EXPECT_EQ(server.read(decrypted), 5u);
    EXPECT_TRUE(std::ranges::equal(decrypted, plain));
  }
}

TEST(Handshake, what_is_cut_anywhere_is_waited_for_and_nothing_else) {
  for (int message = 0; message < 3; ++message) {
    for (size_t keep = 0, size = 1; keep < size; ++keep) {
      Party server(Side::kServer, kSecret), client(Side::kClient, kSecret);
      talk(server, client, [&](int number, Bytes& said) {
        if (number != message) return;
        size = said.size();
        said.resize(keep);
      });
      Party& hears = message == 1 ? server : client;
      EXPECT_EQ(hears.end(), End::kUnderWay);
      EXPECT_EQ(hears.handshake.incoming().size(), size - keep);
    }
  }
}

TEST(Handshake, another_protocol_is_noticed_at_its_first_byte) {
  Party server(Side::kServer, kSecret);
  server.say();
  server.take(std::as_bytes(std::span("G", 1)));
  EXPECT_EQ(server.end(), End::kDataLoss);
}

TEST(Handshake, what_was_said_another_time_opens_nothing) {
  Bytes proof;
  {
    Party server(Side::kServer, kSecret), client(Side::kClient, kSecret);
    talk(server, client, [&](int number, Bytes& said) {
      if (number == 1) proof = said;
    });
    ASSERT_EQ(server.end(), End::kComplete);
  }
  Party server(Side::kServer, kSecret);
  server.say();
  server.take(proof);
  server.say();
  EXPECT_EQ(server.end(), End::kRefused);
}

// A client's proof, shown to a client as if it were a server's.
TEST(Handshake, a_proof_is_good_for_one_role_only) {
  Party server(Side::kServer, kSecret), client(Side::kClient, kSecret);
  Bytes proof;
  talk(server, client, [&](int number, Bytes& said) {
    if (number == 1) proof.assign(said.end() - 32, said.end());
    if (number == 2) std::ranges::copy(proof, said.end() - 32);
  });
  EXPECT_EQ(client.end(), End::kInvalidArgument);
}

TEST(Handshake, secrets_that_are_guessed_are_refused) {
  EXPECT_THROW(Handshake::check("fifteen bytes.."), Error);
  EXPECT_NO_THROW(Handshake::check("sixteen bytes..."));
}

}  // namespace
}  // namespace penstock::net
