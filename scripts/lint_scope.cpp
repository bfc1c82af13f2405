// A plugin of clang-tidy 14: its checks look at our declarations, not at those of the system's
// headers, of which they say nothing anyway and which took most of their time.
#include <clang/AST/ASTConsumer.h>
#include <clang/AST/ASTContext.h>
#include <clang/Basic/SourceManager.h>
#include <clang/Frontend/CompilerInstance.h>
#include <clang/Frontend/FrontendPluginRegistry.h>

#include <memory>
#include <string>
#include <vector>

namespace {

class OwnDeclarations : public clang::ASTConsumer {
  void HandleTranslationUnit(clang::ASTContext& context) override {
    const clang::SourceManager& sources = context.getSourceManager();
    std::vector<clang::Decl*> own;
    for (clang::Decl* decl : context.getTranslationUnitDecl()->decls()) {
      const clang::SourceLocation at = sources.getExpansionLoc(decl->getLocation());
      if (at.isValid() && !sources.isInSystemHeader(at)) own.push_back(decl);
    }
    context.setTraversalScope(own);
  }
};

class BeforeTheChecks : public clang::PluginASTAction {
  std::unique_ptr<clang::ASTConsumer> CreateASTConsumer(clang::CompilerInstance& /*compiler*/,
                                                        llvm::StringRef /*file*/) override {
    return std::make_unique<OwnDeclarations>();
  }
  bool ParseArgs(const clang::CompilerInstance& /*compiler*/,
                 const std::vector<std::string>& /*args*/) override {
    return true;
  }
  ActionType getActionType() override { return AddBeforeMainAction; }
};

}  // namespace

static clang::FrontendPluginRegistry::Add<BeforeTheChecks> registration("own-declarations", "");
